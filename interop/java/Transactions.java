// Transactions of Apache Kafka's Java clients against Tidemill brokers, one source for all versions:
// `java -cp 'LIBRARIES/*' Transactions.java HOST:PORT`. From 4.0 on they use the second generation
// of transactions, before that the first. Prints a line per check; the first failure ends it with
// code 1.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Transactions {
    private static final Duration DEADLINE = Duration.ofSeconds(60);
    private static final int PARTITIONS = 3;

    private final String bootstrap;
    private final Admin admin;

    private Transactions(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) {
        try {
            new Transactions(arguments[0]).runAll();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private interface Check {
        void run() throws Exception;
    }

    private void runAll() throws Exception {
        check("a commit shows the records of three partitions together", this::commits);
        check("an abort shows nothing", this::aborts);
        check("committed and aborted records side by side, every codec", this::mixes);
        check("many short transactions of one producer", this::repeats);
        check("a second producer fences the first", this::fences);
        check("an administrator fences a producer", this::fencesByAdmin);
        check("a transaction that takes too long is aborted", this::timesOut);
        check("consume, transform, produce, with offsets", () -> copies("classic", ""));
        check("the same in the consumer protocol", () -> copies("consumer", ""));
        check("the same from a view", () -> copies("classic", "odd = 'yes'"));
        check("transactions are listed and described", this::describes);
    }

    private static void check(String name, Check body) throws Exception {
        body.run();
        System.out.println("ok: " + name);
    }

    private static void require(boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError("seen: " + seen);
        }
    }

    // --- means -----------------------------------------------------------------------------------

    private void createTopic(String topic, Map<String, String> configs) throws Exception {
        Optional<Integer> partitions =
                configs.containsKey("tidemill.view.of") ? Optional.empty() : Optional.of(PARTITIONS);
        NewTopic wanted = new NewTopic(topic, partitions, Optional.empty());
        admin.createTopics(List.of(wanted.configs(configs))).all().get();
    }

    private KafkaProducer<String, String> producer(String id, Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.put("bootstrap.servers", bootstrap);
        all.put("transactional.id", id);
        var text = new StringSerializer();
        var producer = new KafkaProducer<>(all, text, text);
        producer.initTransactions();
        return producer;
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int first) {
        for (int n = first; n < first + 30; n++) {
            producer.send(new ProducerRecord<>(topic, n % PARTITIONS, null, "r" + n));
        }
    }

    private KafkaConsumer<String, String> reader(String isolation, Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.put("bootstrap.servers", bootstrap);
        all.put("isolation.level", isolation);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private static List<TopicPartition> partitions(String topic) {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        return all;
    }

    /** What a reader sees up to the ends that it is told when it has seen `least` of them. */
    private List<String> read(String isolation, String topic, int least) {
        List<String> values = new ArrayList<>();
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var reader = reader(isolation, Map.of())) {
            var all = partitions(topic);
            reader.assign(all);
            reader.seekToBeginning(all);
            boolean isDone = false;
            while (!isDone && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(100))) {
                    values.add(record.value());
                }
                var ends = reader.endOffsets(all);
                isDone = values.size() >= least
                        && all.stream().allMatch(one -> reader.position(one) >= ends.get(one));
            }
            require(isDone, values.size() + " records, and not the end");
        }
        Collections.sort(values);
        return values;
    }

    private static List<String> values(int... firsts) {
        List<String> all = new ArrayList<>();
        for (int first : firsts) {
            for (int n = first; n < first + 30; n++) {
                all.add("r" + n);
            }
        }
        Collections.sort(all);
        return all;
    }

    // --- one producer ----------------------------------------------------------------------------

    private void commits() throws Exception {
        String topic = "txn-commit";
        createTopic(topic, Map.of());
        try (var producer = producer(topic, Map.of())) {
            producer.beginTransaction();
            send(producer, topic, 0);
            producer.flush();
            require(read("read_uncommitted", topic, 30).equals(values(0)), "not all were sent");
            require(read("read_committed", topic, 0).isEmpty(), "shown before the commit");
            producer.commitTransaction();
        }
        require(read("read_committed", topic, 30).equals(values(0)), "not all are shown");
    }

    private void aborts() throws Exception {
        String topic = "txn-abort";
        createTopic(topic, Map.of());
        try (var producer = producer(topic, Map.of())) {
            producer.beginTransaction();
            send(producer, topic, 0);
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 100);
            producer.commitTransaction();
        }
        require(read("read_committed", topic, 30).equals(values(100)), "not what was committed");
        require(read("read_uncommitted", topic, 60).equals(values(0, 100)), "not what was sent");
    }

    private void mixes() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = "txn-mix-" + codec;
            createTopic(topic, Map.of());
            var options = Map.<String, Object>of("compression.type", codec);
            try (var one = producer(topic + "-1", options);
                    var other = producer(topic + "-2", options)) {
                for (int round = 0; round < 4; round++) {
                    one.beginTransaction();
                    other.beginTransaction();
                    send(one, topic, 1000 + 100 * round);
                    send(other, topic, 2000 + 100 * round);
                    other.flush();
                    if (round % 2 == 0) {
                        one.commitTransaction();
                        other.abortTransaction();
                    } else {
                        one.abortTransaction();
                        other.commitTransaction();
                    }
                }
            }
            var expected = values(1000, 1200, 2100, 2300);
            var seen = read("read_committed", topic, 120);
            require(seen.equals(expected), codec + ": " + seen);
        }
    }

    private void repeats() throws Exception {
        String topic = "txn-many";
        createTopic(topic, Map.of());
        try (var producer = producer(topic, Map.of())) {
            for (int n = 0; n < 200; n++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, n % PARTITIONS, null, "r" + n));
                producer.commitTransaction();
            }
        }
        require(read("read_committed", topic, 200).size() == 200, "not all are shown");
    }

    // --- fencing and time ------------------------------------------------------------------------

    private static void requireFenced(KafkaProducer<String, String> producer) {
        Throwable refusal = refusalOfCommit(producer);
        require(refusal instanceof ProducerFencedException
                || refusal instanceof InvalidProducerEpochException, refusal);
    }

    private static Throwable refusalOfCommit(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (KafkaException failure) {
            return failure.getCause() == null ? failure : failure.getCause();
        }
        throw new AssertionError("it was committed");
    }

    private void fences() throws Exception {
        String topic = "txn-fence";
        createTopic(topic, Map.of());
        var old = producer(topic, Map.of());
        old.beginTransaction();
        send(old, topic, 0);
        old.flush();
        try (var successor = producer(topic, Map.of())) {
            successor.beginTransaction();
            send(successor, topic, 100);
            successor.commitTransaction();
        }
        requireFenced(old);
        old.close(Duration.ZERO);
        require(read("read_committed", topic, 30).equals(values(100)), "records of the fenced one");
    }

    private void fencesByAdmin() throws Exception {
        String topic = "txn-fence-admin";
        createTopic(topic, Map.of());
        var old = producer(topic, Map.of());
        old.beginTransaction();
        send(old, topic, 0);
        old.flush();
        admin.fenceProducers(List.of(topic)).all().get();
        requireFenced(old);
        old.close(Duration.ZERO);
        require(read("read_committed", topic, 0).isEmpty(), "records of the fenced one");
    }

    private void timesOut() throws Exception {
        String topic = "txn-late";
        createTopic(topic, Map.of());
        var late = producer(topic, Map.of("transaction.timeout.ms", 1000));
        late.beginTransaction();
        send(late, topic, 0);
        late.flush();
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        boolean isAborted = false;
        while (!isAborted && System.nanoTime() < deadline) {
            Thread.sleep(200);
            var state = admin.describeTransactions(List.of(topic)).all().get().get(topic).state();
            isAborted = state == TransactionState.COMPLETE_ABORT;
        }
        require(isAborted, "still open");
        Throwable refusal = refusalOfCommit(late);
        // In the second generation the late commit looks like a repeated end with another outcome.
        require(refusal instanceof ProducerFencedException
                || refusal instanceof InvalidProducerEpochException
                || refusal instanceof InvalidTxnStateException, refusal);
        late.close(Duration.ZERO);
        require(read("read_committed", topic, 0).isEmpty(), "records of a late transaction");
    }

    // --- topic to topic --------------------------------------------------------------------------

    /** Copies a topic, or a view of it, with an abort in each third transaction. */
    private void copies(String protocol, String filter) throws Exception {
        String name = "txn-copy-" + protocol + (filter.isEmpty() ? "" : "-view");
        String base = name + "-in";
        createTopic(base, Map.of());
        createTopic(name, Map.of());
        List<String> expected = new ArrayList<>();
        try (var producer = producer(base, Map.of())) {
            producer.beginTransaction();
            for (int n = 0; n < 300; n++) {
                var record = new ProducerRecord<String, String>(base, n % PARTITIONS, null, "r" + n);
                String odd = n % 2 == 1 ? "yes" : "no";
                record.headers().add("odd", odd.getBytes(StandardCharsets.UTF_8));
                producer.send(record);
                if (filter.isEmpty() || n % 2 == 1) {
                    expected.add("copy of r" + n);
                }
            }
            producer.commitTransaction();
        }
        String source = base;
        if (!filter.isEmpty()) {
            source = base + ".view";
            createTopic(source, Map.of("tidemill.view.of", base, "tidemill.view.filter", filter));
        }
        // Each run ends after an abort, as if its process had died there, and the next goes on.
        for (int run = 0; run < 3; run++) {
            copyUntilAbort(protocol, source, name, run < 2 ? 2 : Integer.MAX_VALUE);
        }
        Collections.sort(expected);
        var seen = read("read_committed", name, expected.size());
        require(seen.equals(expected), seen.size() + " records, not " + expected.size());
    }

    private void copyUntilAbort(String protocol, String source, String target, int commits)
            throws Exception {
        Map<String, Object> options = new HashMap<>();
        options.put("group.id", target);
        options.put("group.protocol", protocol);
        options.put("max.poll.records", 20);
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var reader = reader("read_committed", options);
                var producer = producer(target, Map.of())) {
            reader.subscribe(List.of(source));
            int committed = 0;
            while (System.nanoTime() < deadline && !isAtEnd(reader, source)) {
                var records = reader.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                for (var record : records) {
                    String value = "copy of " + record.value();
                    producer.send(new ProducerRecord<>(target, record.partition(), null, value));
                    var partition = new TopicPartition(record.topic(), record.partition());
                    next.put(partition, new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, reader.groupMetadata());
                if (committed == commits) {
                    producer.abortTransaction();
                    return;
                }
                producer.commitTransaction();
                committed++;
            }
            require(isAtEnd(reader, source), "not the end");
        }
    }

    private static boolean isAtEnd(KafkaConsumer<String, String> reader, String source) {
        var all = partitions(source);
        if (!reader.assignment().containsAll(all)) {
            return false;
        }
        var ends = reader.endOffsets(all);
        return all.stream().allMatch(one -> reader.position(one) >= ends.get(one));
    }

    // --- tools -----------------------------------------------------------------------------------

    private void describes() throws Exception {
        String topic = "txn-described";
        createTopic(topic, Map.of());
        try (var producer = producer(topic, Map.of())) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "r")).get();
            var listed = admin.listTransactions().all().get();
            require(listed.stream().anyMatch(one -> one.transactionalId().equals(topic)), listed);
            var found = admin.describeTransactions(List.of(topic)).all().get().get(topic);
            require(found.state() == TransactionState.ONGOING, found);
            var partition = new TopicPartition(topic, 0);
            require(found.topicPartitions().equals(java.util.Set.of(partition)), found);
            var producers = admin.describeProducers(List.of(partition)).all().get().get(partition);
            require(producers.activeProducers().size() == 1, producers);
            var active = producers.activeProducers().get(0);
            require(active.currentTransactionStartOffset().getAsLong() == 0, active);
            producer.commitTransaction();
        }
    }
}
