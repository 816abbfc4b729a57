// Apache Kafka's own Java clients against Tidemill brokers, one source for all their versions:
// `java -cp 'LIBRARIES/*' Interop.java HOST:PORT BROKERS`. Prints a line per check; the first failure
// ends it with code 1.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public final class Interop {
    private static final long NOVEMBER_2023_MS = 1_700_000_000_000L;
    private static final Duration DEADLINE = Duration.ofSeconds(30);
    private static final Map<String, String> SMALL = Map.of("max.message.bytes", "20000");

    private final String bootstrap;
    private final int brokers;
    private final Admin admin;

    private Interop(String bootstrap, int brokers) {
        this.bootstrap = bootstrap;
        this.brokers = brokers;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        Interop interop = new Interop(arguments[0], Integer.parseInt(arguments[1]));
        try {
            interop.runAll();
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
        check("the cluster is described", this::describesCluster);
        check("a topic's whole life", this::runsTopicThroughItsLife);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            check("round trip with " + codec, () -> roundTrip(codec));
        }
        check("acks 0 and 1", this::weakPromises);
        check("a record of 900 KB", this::largeRecord);
        check("times inside a batch", this::findsTimes);
        if (!AppInfoParser.getVersion().startsWith("3.")) {
            // Before 4.0 a batch below the producer's batch.size was split into itself, for ever.
            check("a batch that is too large is split", this::splitsTooLargeBatches);
        }
        check("a record that is too large is refused", this::refusesTooLargeRecord);
        check("deleted records are gone", this::deletesRecords);
        for (String assignor : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
            String name = "org.apache.kafka.clients.consumer." + assignor + "Assignor";
            var strategy = Map.<String, Object>of("partition.assignment.strategy", name);
            check("a group shares a topic by " + name, () -> sharesTopic(assignor, strategy));
        }
        var uniform = Map.<String, Object>of("group.protocol", "consumer");
        check("a group of the consumer protocol", () -> sharesTopic("consumer", uniform));
        check("a static member comes back without a rebalance", this::comesBackAsStaticMember);
        check("groups are described, reset and deleted", this::administersGroups);
        check("a producer survives its topic's recreation", this::survivesRecreation);
        check("a view shows what matches, and its readers reach the end", this::drainsViews);
        check("readers pass over what is held, and a view shows it", this::passesOverHolds);
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

    // --- admin -----------------------------------------------------------------------------------

    private void describesCluster() throws Exception {
        var cluster = admin.describeCluster();
        require(cluster.nodes().get().size() == brokers, cluster.nodes().get());
        require(cluster.controller().get().id() < brokers, cluster.controller().get());
        require(!cluster.clusterId().get().isEmpty(), cluster.clusterId().get());
    }

    private void createTopic(String topic, int partitions, Map<String, String> configs)
            throws Exception {
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        admin.createTopics(List.of(wanted.configs(configs))).all().get();
    }

    private TopicDescription describe(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    private void runsTopicThroughItsLife() throws Exception {
        String topic = "java-life";
        createTopic(topic, 2, Map.of("retention.ms", "60000"));
        try {
            createTopic(topic, 2, Map.of());
            require(false, "made twice");
        } catch (ExecutionException refused) {
            require(refused.getCause() instanceof TopicExistsException, refused);
        }
        await(() -> admin.listTopics().names().get(), names -> names.contains(topic));
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        await(() -> describe(topic), described -> described.partitions().size() == 5);

        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        await(() -> retention(resource), "60000"::equals);
        ConfigEntry entry = new ConfigEntry("retention.ms", "70000");
        AlterConfigOp operation = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
        await(() -> retention(resource), "70000"::equals);
        var directories = admin.describeLogDirs(List.of(0)).allDescriptions().get();
        require(directories.size() == 1, directories);

        admin.deleteTopics(List.of(topic)).all().get();
        await(() -> admin.listTopics().names().get(), left -> !left.contains(topic));
    }

    private String retention(ConfigResource resource) throws Exception {
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        return config.get("retention.ms").value();
    }

    /** The admin client asks any broker, and only the one that made the change has heard of it. */
    private static <T> void await(Callable<T> ask, Predicate<T> isWanted) throws Exception {
        long deadline = System.nanoTime() + 10_000_000_000L;
        T seen = ask.call();
        while (!isWanted.test(seen)) {
            require(System.nanoTime() < deadline, seen);
            Thread.sleep(20);
            seen = ask.call();
        }
    }

    // --- records ---------------------------------------------------------------------------------

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.put("bootstrap.servers", bootstrap);
        all.putIfAbsent("linger.ms", 20);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String topic, int partitions) {
        Map<String, Object> options =
                Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "none");
        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaConsumer<>(options, bytes, bytes);
        List<TopicPartition> assigned = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            assigned.add(new TopicPartition(topic, partition));
        }
        consumer.assign(assigned);
        consumer.seekToBeginning(assigned);
        return consumer;
    }

    private List<ConsumerRecord<byte[], byte[]>> read(String topic, int partitions, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var consumer = consumer(topic, partitions)) {
            while (records.size() < count && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            }
        }
        require(records.size() == count, records.size() + " of " + count + " records");
        return records;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private void roundTrip(String codec) throws Exception {
        String topic = "java-" + codec;
        createTopic(topic, 3, Map.of());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = producer(Map.of("compression.type", codec))) {
            for (int n = 0; n < 3000; n++) {
                byte[] key = bytes("key-" + n % 7);
                var record = new ProducerRecord<>(topic, n % 3, key, bytes("compress me " + n));
                record.headers().add("number", bytes(String.valueOf(n)));
                sent.add(producer.send(record));
            }
        }
        for (int n = 0; n < 3000; n++) {
            require(sent.get(n).get().offset() == n / 3, sent.get(n).get());
        }
        for (var record : read(topic, 3, 3000)) {
            int n = (int) record.offset() * 3 + record.partition();
            require(text(record.value()).equals("compress me " + n), text(record.value()));
            String number = text(record.headers().lastHeader("number").value());
            require(number.equals(String.valueOf(n)), record);
        }
    }

    private void weakPromises() throws Exception {
        createTopic("java-weak", 1, Map.of());
        for (String acks : List.of("0", "1")) {
            try (var producer = producer(Map.of("acks", acks, "enable.idempotence", false))) {
                for (int n = 0; n < 100; n++) {
                    producer.send(new ProducerRecord<>("java-weak", bytes(acks)));
                }
            }
        }
        read("java-weak", 1, 200);
    }

    private void largeRecord() throws Exception {
        createTopic("java-large", 1, Map.of());
        byte[] value = new byte[900_000];
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>("java-large", value)).get();
        }
        require(read("java-large", 1, 1).get(0).value().length == value.length, "another length");
    }

    private void findsTimes() throws Exception {
        createTopic("java-times", 1, Map.of());
        TopicPartition partition = new TopicPartition("java-times", 0);
        try (var producer = producer(Map.of("compression.type", "gzip"))) {
            for (int n = 0; n < 100; n++) {
                long timestamp = NOVEMBER_2023_MS + 10 * n;
                producer.send(new ProducerRecord<>("java-times", 0, timestamp, null, bytes("v")));
            }
        }
        try (var consumer = consumer("java-times", 1)) {
            Map<TopicPartition, OffsetAndTimestamp> found =
                    consumer.offsetsForTimes(Map.of(partition, NOVEMBER_2023_MS + 421));
            require(found.get(partition).offset() == 43, found);
            require(consumer.endOffsets(List.of(partition)).get(partition) == 100, "end");
        }
        var asked = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp()));
        var latest = asked.partitionResult(partition).get();
        require(latest.offset() == 99, latest);
    }

    private void splitsTooLargeBatches() throws Exception {
        createTopic("java-split", 1, SMALL);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = producer(Map.of("batch.size", 200_000, "linger.ms", 500))) {
            for (int n = 0; n < 100; n++) {
                sent.add(producer.send(new ProducerRecord<>("java-split", new byte[1000])));
            }
        }
        for (int n = 0; n < 100; n++) {
            require(sent.get(n).get().offset() == n, sent.get(n).get());
        }
        read("java-split", 1, 100);
    }

    private void refusesTooLargeRecord() throws Exception {
        createTopic("java-small", 1, SMALL);
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>("java-small", new byte[50_000])).get();
            require(false, "a record above the limit was taken");
        } catch (ExecutionException refused) {
            require(refused.getCause() instanceof RecordTooLargeException, refused);
        }
    }

    private void deletesRecords() throws Exception {
        TopicPartition partition = new TopicPartition("java-weak", 0);
        var until = Map.of(partition, RecordsToDelete.beforeOffset(150));
        var deleted = admin.deleteRecords(until).lowWatermarks();
        require(deleted.get(partition).get().lowWatermark() == 150, deleted);
        require(read("java-weak", 1, 50).get(0).offset() == 150, "the log begins elsewhere");
    }

    // --- groups ----------------------------------------------------------------------------------

    private KafkaConsumer<byte[], byte[]> member(String group, Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.put("bootstrap.servers", bootstrap);
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        if (!options.containsKey("group.protocol")) {
            all.put("heartbeat.interval.ms", 200);
        }
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void fill(String topic, int partitions, int count) throws Exception {
        createTopic(topic, partitions, Map.of());
        try (var producer = producer(Map.of())) {
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, n % partitions, null, bytes("r" + n)));
            }
        }
    }

    private void sharesTopic(String name, Map<String, Object> options) throws Exception {
        String topic = "java-group-" + name;
        fill(topic, 6, 600);
        Set<String> seen = new java.util.HashSet<>();
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var one = member(topic, options); var other = member(topic, options)) {
            one.subscribe(List.of(topic));
            other.subscribe(List.of(topic));
            boolean shared = false;
            while ((!shared || seen.size() < 600) && System.nanoTime() < deadline) {
                for (var member : List.of(one, other)) {
                    for (var record : member.poll(Duration.ofMillis(100))) {
                        seen.add(text(record.value()));
                    }
                }
                shared = one.assignment().size() == 3 && other.assignment().size() == 3;
            }
            require(shared, one.assignment() + " and " + other.assignment());
            require(seen.size() == 600, seen.size() + " of 600 records");
            // The first member may have read partitions that the other one has only just taken over.
            while (positions(one) + positions(other) < 600 && System.nanoTime() < deadline) {
                one.poll(Duration.ofMillis(100));
                other.poll(Duration.ofMillis(100));
            }
            one.commitSync();
            other.commitSync();
        }
        var committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
        long sum = committed.values().stream().mapToLong(offset -> offset.offset()).sum();
        require(committed.size() == 6 && sum == 600, committed);
    }

    private static long positions(KafkaConsumer<byte[], byte[]> member) {
        return member.assignment().stream().mapToLong(member::position).sum();
    }

    private void comesBackAsStaticMember() throws Exception {
        String topic = "java-static";
        fill(topic, 2, 2);
        var options = Map.<String, Object>of("group.instance.id", "the-one");
        String before = joinAndLeave(topic, options);
        require(before.equals(joinAndLeave(topic, options)), "another generation than " + before);
    }

    private String joinAndLeave(String topic, Map<String, Object> options) {
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        try (var member = member(topic, options)) {
            member.subscribe(List.of(topic));
            while (member.assignment().size() < 2 && System.nanoTime() < deadline) {
                member.poll(Duration.ofMillis(100));
            }
            require(member.assignment().size() == 2, member.assignment());
            return String.valueOf(member.groupMetadata().generationId());
        }
    }

    private void administersGroups() throws Exception {
        String group = "java-group-Range";
        var listed = admin.listConsumerGroups().all().get();
        require(listed.stream().anyMatch(one -> one.groupId().equals(group)), listed);
        var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        require(described.members().isEmpty(), described);
        TopicPartition partition = new TopicPartition(group, 0);
        var start = new org.apache.kafka.clients.consumer.OffsetAndMetadata(7, "by hand");
        admin.alterConsumerGroupOffsets(group, Map.of(partition, start)).all().get();
        var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        require(offsets.get(partition).equals(start), offsets);
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
        var left = admin.listConsumerGroups().all().get();
        require(left.stream().noneMatch(one -> one.groupId().equals(group)), left);
    }

    private void survivesRecreation() throws Exception {
        String topic = "java-anew";
        createTopic(topic, 1, Map.of());
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(topic, bytes("old"))).get();
            Object oldId = describe(topic).topicId();
            admin.deleteTopics(Set.of(topic)).all().get();
            createTopic(topic, 1, Map.of());
            require(!describe(topic).topicId().equals(oldId), oldId);
            RecordMetadata sent = producer.send(new ProducerRecord<>(topic, bytes("new"))).get();
            require(sent.offset() == 0, sent);
        }
        require(text(read(topic, 1, 1).get(0).value()).equals("new"), "an old record");
    }

    // --- views -----------------------------------------------------------------------------------

    private void drainsViews() throws Exception {
        createTopic("java-viewed", 1, Map.of());
        try (var producer = producer(Map.of("compression.type", "lz4"))) {
            for (int n = 0; n < 1_000; n++) {
                var record = new ProducerRecord<byte[], byte[]>("java-viewed", bytes("" + n));
                record.headers().add("number", bytes("" + n));
                producer.send(record);
            }
        }
        drainView("none", "missing = 1", 0);
        drainView("few", "number < 7 OR number = 900", 8);
        drainView("half", "number >= 500", 500);
        drainView("all", "", 1_000);
    }

    private void drainView(String name, String where, int expected) throws Exception {
        createView("java-viewed", name, "tidemill.view.filter", where);
        drain("java-viewed." + name, expected);
    }

    /** Every third record is held for an hour, the last one too. */
    private void passesOverHolds() throws Exception {
        createTopic("java-held", 1, Map.of());
        try (var producer = producer(Map.of("compression.type", "lz4"))) {
            for (int n = 0; n < 1_000; n++) {
                var record = new ProducerRecord<byte[], byte[]>("java-held", bytes("" + n));
                if (n % 3 == 0) {
                    record.headers().add("tidemill.delay-ms", bytes("3600000"));
                }
                producer.send(record);
            }
        }
        drain("java-held", 666);
        createView("java-held", "held", "tidemill.view.held", "true");
        drain("java-held.held", 334);
    }

    private void createView(String base, String name, String key, String value) throws Exception {
        NewTopic wanted = new NewTopic(base + "." + name, Optional.empty(), Optional.empty());
        var keys = Map.of("tidemill.view.of", base, key, value);
        admin.createTopics(List.of(wanted.configs(keys))).all().get();
    }

    /** A group reads `expected` of the 1,000 records, and its position reaches the end. */
    private void drain(String topic, int expected) throws Exception {
        var partition = new TopicPartition(topic, 0);
        try (var reader = member("group-" + topic, Map.of())) {
            reader.subscribe(List.of(topic));
            int seen = 0;
            long deadline = System.nanoTime() + DEADLINE.toNanos();
            while (System.nanoTime() < deadline) {
                seen += reader.poll(Duration.ofMillis(100)).count();
                if (reader.assignment().contains(partition) && reader.position(partition) == 1_000) {
                    break;
                }
            }
            require(seen == expected, seen);
            reader.commitSync();
            var committed = reader.committed(Set.of(partition)).get(partition);
            require(committed.offset() == 1_000, committed);
        }
    }
}
