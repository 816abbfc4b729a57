// Apache Kafka's own Java clients while brokers fail, one source for all their versions:
// `java -cp 'LIBRARIES/*' Failover.java HOST:PORT`. An idempotent producer sends numbered records, and
// a group of each protocol reads them, until the standard input ends. Then the groups drain, and
// everything is compared. It prints how far each has come, so that its caller knows when to go on; the
// first failure ends it with code 1.
//
// Record n goes to partition n % 3. No record may fail, be there twice or change places, so it belongs
// to offset n / 3: that is what the producer must be told, and what every reader must find there.

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;

public final class Failover {
    private static final String TOPIC = "failover";
    private static final int PARTITIONS = 3;
    private static final int MEMBERS = 2;
    private static final int RECORDS_AT_ONCE = 15;
    private static final int RECORDS_PER_LINE = 150;
    private static final long PAUSE_MS = 10;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration DEADLINE = Duration.ofMinutes(5);
    private static final List<TopicPartition> ALL = IntStream.range(0, PARTITIONS)
            .mapToObj(partition -> new TopicPartition(TOPIC, partition))
            .collect(Collectors.toList());

    private final String bootstrap;
    private final Admin admin;
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger withoutOffset = new AtomicInteger();
    /** What a thread of a client came upon first. */
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private volatile boolean isToldToEnd;

    private Failover(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) {
        try {
            new Failover(arguments[0]).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            for (Throwable one = failure; one != null; one = one.getCause()) {
                System.err.println("failed: " + one); // last, where the caller shows it
            }
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        NewTopic wanted = new NewTopic(TOPIC, PARTITIONS, (short) 3);
        admin.createTopics(List.of(wanted)).all().get();
        List<Group> groups = List.of(new Group("classic"), new Group("consumer"));
        groups.forEach(Group::start);
        startThread(this::waitForEndOfInput);
        int count = sendUntilTold(groups);
        awaitThat(() -> acknowledged.get() == count, () -> acknowledged + " of " + count + " sent");
        for (Group group : groups) {
            awaitThat(() -> group.isAt(count), () -> group + ", and not all of " + count);
            group.stop();
            requireAllCommitted(group, count);
        }
        requireExactly(count);
        System.out.println("ok: " + count + " records, " + withoutOffset
                + " acknowledged without an offset; " + groups);
    }

    // --- failures --------------------------------------------------------------------------------

    private static void require(boolean holds, Object seen) {
        if (!holds) {
            throw new AssertionError("seen: " + seen);
        }
    }

    private void requireNoFailure() {
        if (failure.get() != null) {
            throw new AssertionError("a client failed", failure.get());
        }
    }

    private void awaitThat(BooleanSupplier isTrue, Supplier<String> seen) throws Exception {
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        while (!isTrue.getAsBoolean()) {
            requireNoFailure();
            require(System.nanoTime() < deadline, seen.get());
            Thread.sleep(20);
        }
        requireNoFailure();
    }

    private interface Body {
        void run() throws Exception;
    }

    private Thread startThread(Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Throwable found) {
                failure.compareAndSet(null, found);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void waitForEndOfInput() throws IOException {
        while (System.in.read() != -1) {
            // The caller has nothing to say.
        }
        isToldToEnd = true;
    }

    // --- the producer ----------------------------------------------------------------------------

    /** How many records were sent; they are not all acknowledged yet. */
    private int sendUntilTold(List<Group> groups) throws Exception {
        Map<String, Object> options = Map.of(
                "bootstrap.servers", bootstrap,
                "acks", "all",
                "enable.idempotence", true,
                "delivery.timeout.ms", (int) DEADLINE.toMillis());
        var producer =
                new KafkaProducer<>(options, new IntegerSerializer(), new IntegerSerializer());
        int count = 0;
        while (!isToldToEnd) {
            requireNoFailure();
            for (int sent = 0; sent < RECORDS_AT_ONCE; sent++) {
                int n = count++;
                producer.send(new ProducerRecord<>(TOPIC, n % PARTITIONS, null, n),
                        (told, refusal) -> takeAnswer(n, told, refusal));
            }
            if (count % RECORDS_PER_LINE == 0) {
                printProgress(groups);
            }
            Thread.sleep(PAUSE_MS);
        }
        startThread(() -> producer.close(DEADLINE));
        return count;
    }

    private void takeAnswer(int n, RecordMetadata told, Exception refusal) {
        if (refusal != null) {
            failure.compareAndSet(null, new AssertionError("record " + n + " failed", refusal));
            return;
        }
        if (!told.hasOffset()) {
            // A repeat of a batch of which the leader no longer knows the place; it is read later.
            withoutOffset.incrementAndGet();
        } else if (told.partition() != n % PARTITIONS || told.offset() != n / PARTITIONS) {
            failure.compareAndSet(null, new AssertionError("record " + n + " went to " + told));
        }
        acknowledged.incrementAndGet();
    }

    private void printProgress(List<Group> groups) {
        StringBuilder line = new StringBuilder("progress " + acknowledged);
        groups.forEach(group -> line.append(" ").append(group.seen()));
        System.out.println(line);
    }

    // --- the groups ------------------------------------------------------------------------------

    private static void requireInPlace(ConsumerRecord<Integer, Integer> record) {
        int expected = (int) record.offset() * PARTITIONS + record.partition();
        require(record.value() == expected, record);
    }

    private KafkaConsumer<Integer, Integer> consumer(Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.put("bootstrap.servers", bootstrap);
        all.putIfAbsent("auto.offset.reset", "none");
        return new KafkaConsumer<>(all, new IntegerDeserializer(), new IntegerDeserializer());
    }

    /** Members of one protocol, which commit what they have read after every poll. */
    private final class Group {
        private final String protocol;
        private final List<Thread> threads = new ArrayList<>();
        /** The first offset that no member has read, of each partition. */
        private final Map<TopicPartition, Long> next = new HashMap<>();
        /** The highest offsets that were committed, as far as members were told. */
        private final Map<TopicPartition, Long> committed = new HashMap<>();
        private int refusedCommits;
        private volatile boolean isStopped;

        Group(String protocol) {
            this.protocol = protocol;
            for (TopicPartition partition : ALL) {
                next.put(partition, 0L);
                committed.put(partition, 0L);
            }
        }

        String id() {
            return TOPIC + "-" + protocol;
        }

        void start() {
            for (int member = 0; member < MEMBERS; member++) {
                threads.add(startThread(this::readAndCommit));
            }
        }

        void stop() throws Exception {
            isStopped = true;
            for (Thread thread : threads) {
                thread.join(DEADLINE.toMillis());
                require(!thread.isAlive(), "a member of " + this + " does not end");
            }
            requireNoFailure();
        }

        private void readAndCommit() {
            var options = new HashMap<String, Object>();
            options.put("group.id", id());
            options.put("group.protocol", protocol);
            options.put("enable.auto.commit", false);
            options.put("auto.offset.reset", "earliest");
            options.put("fetch.min.bytes", 10_000); // some commits a second, not hundreds
            Map<TopicPartition, OffsetAndMetadata> unsaved = new HashMap<>();
            try (var member = consumer(options)) {
                member.subscribe(List.of(TOPIC), new Forgetting(unsaved));
                while (!isStopped) {
                    for (var record : member.poll(POLL)) {
                        unsaved.put(take(record), new OffsetAndMetadata(record.offset() + 1));
                    }
                    commit(member, unsaved);
                }
            }
        }

        /** Records may come again after a rebalance, but nothing is left out. */
        private synchronized TopicPartition take(ConsumerRecord<Integer, Integer> record) {
            requireInPlace(record);
            TopicPartition partition = new TopicPartition(TOPIC, record.partition());
            long expected = next.get(partition);
            require(record.offset() <= expected, id() + " expects " + expected + ": " + record);
            next.put(partition, Math.max(expected, record.offset() + 1));
            return partition;
        }

        private void commit(
                KafkaConsumer<?, ?> member, Map<TopicPartition, OffsetAndMetadata> unsaved) {
            if (unsaved.isEmpty()) {
                return;
            }
            try {
                member.commitSync(unsaved);
                keepCommitted(unsaved);
                unsaved.clear();
                requireNotBefore(committedSoFar(), member.committed(Set.copyOf(ALL)));
            } catch (CommitFailedException | RetriableException refusal) {
                // The group has gone on without this member, or its coordinator is away: try again
                // unless the next poll takes the partitions away.
                countRefusal();
            }
        }

        private synchronized void countRefusal() {
            refusedCommits++;
        }

        private synchronized void keepCommitted(Map<TopicPartition, OffsetAndMetadata> offsets) {
            offsets.forEach((place, one) -> committed.merge(place, one.offset(), Math::max));
        }

        private synchronized Map<TopicPartition, Long> committedSoFar() {
            return new HashMap<>(committed);
        }

        private void requireNotBefore(
                Map<TopicPartition, Long> before, Map<TopicPartition, OffsetAndMetadata> found) {
            found.forEach((partition, one) -> {
                long offset = one == null ? 0 : one.offset();
                require(offset >= before.get(partition), id() + " had committed " + before
                        + ", and then there is " + found);
            });
        }

        synchronized long seen() {
            return next.values().stream().mapToLong(Long::longValue).sum();
        }

        /** Whether it has read and committed so many records. */
        synchronized boolean isAt(int count) {
            long sum = committed.values().stream().mapToLong(Long::longValue).sum();
            return seen() == count && sum == count;
        }

        @Override
        public synchronized String toString() {
            return id() + " read " + next + " and committed " + committed + ", "
                    + refusedCommits + " commits refused";
        }
    }

    /** What a member has not committed yet is another's to commit when it loses the partition. */
    private static final class Forgetting implements ConsumerRebalanceListener {
        private final Map<TopicPartition, OffsetAndMetadata> unsaved;

        Forgetting(Map<TopicPartition, OffsetAndMetadata> unsaved) {
            this.unsaved = unsaved;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            unsaved.keySet().removeAll(partitions);
        }
    }

    // --- the end ---------------------------------------------------------------------------------

    private void requireAllCommitted(Group group, int count) throws Exception {
        var asked = admin.listConsumerGroupOffsets(group.id());
        var listed = asked.partitionsToOffsetAndMetadata().get();
        require(listed.keySet().equals(Set.copyOf(ALL)), listed);
        require(sum(listed.values()) == count, listed + " of " + count);
    }

    private static long sum(Collection<OffsetAndMetadata> offsets) {
        return offsets.stream().mapToLong(OffsetAndMetadata::offset).sum();
    }

    /** From the beginning to the end, every record is in its place, and there is nothing else. */
    private void requireExactly(int count) {
        Map<TopicPartition, Long> next = new HashMap<>();
        ALL.forEach(partition -> next.put(partition, 0L));
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var reader = consumer(Map.of())) {
            reader.assign(ALL);
            reader.seekToBeginning(ALL);
            var ends = reader.endOffsets(ALL);
            require(ends.values().stream().allMatch(end -> end == count / PARTITIONS), ends);
            while (!next.equals(ends)) {
                require(System.nanoTime() < deadline, next + " of " + ends);
                for (var record : reader.poll(POLL)) {
                    requireInPlace(record);
                    var partition = new TopicPartition(TOPIC, record.partition());
                    require(record.offset() == next.get(partition), next + " before " + record);
                    next.merge(partition, 1L, Long::sum);
                }
            }
        }
    }
}
