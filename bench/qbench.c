/* A driver for any broker that speaks Kafka's protocol, on librdkafka: the same client for both
 * sides of a comparison. `bench/qbench.py` builds and runs it.
 *
 *   qbench BROKERS TOPIC produce COUNT SIZE ACKS [key=value ...]         until the last ack
 *   qbench BROKERS TOPIC consume COUNT [key=value ...]                   every partition, from its start
 *   qbench BROKERS TOPIC latency COUNT SIZE ACKS [key=value ...]         one record at a time
 *   qbench BROKERS TOPIC e2e RATE SECONDS SIZE ACKS [key=value ...]      paced, read back by a thread
 *   qbench BROKERS TOPIC transactions COUNT RECORDS SIZE [key=value ...] committed one by one
 *
 * key=value are librdkafka's settings, given to the producer, or to the consumer of `consume`. Of
 * another kind is header=NAME:FIRST:CYCLE:EVERY, for `produce` and `e2e`: each record gets a header
 * whose value is a number, FIRST at first, one more after EVERY records, and FIRST again after CYCLE
 * of them.
 * The result is one line of key=value words. Exit code: 0, or 1 when a record was lost or refused,
 * or 2 when nothing could be measured. Every run ends by itself, after RUN_SECONDS_MAX at most.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PRODUCE_BATCH = 1000,  /* records handed over per call, all to one partition */
    CONSUME_BATCH = 10000, /* records taken over per call */
    PAYLOAD_SHIFTS = 64,   /* payloads begin at different places of one random text */
    RUN_SECONDS_MAX = 300,
    IDLE_SECONDS_MAX = 10,
    SETTLE_SECONDS = 2, /* for the reader of `e2e` to stand at the end of the log */
};

static long acked;
static long failed;
static double last_ack;
static struct {
    char name[64]; /* empty: records have no header */
    long first, cycle, every;
} header;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *message) {
    fprintf(stderr, "qbench: %s\n", message);
    exit(2);
}

static void *must(void *memory) {
    if (!memory)
        fail("out of memory");
    return memory;
}

/* --- clients ----------------------------------------------------------------------------------- */

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err)
        failed++;
    else
        acked++;
    last_ack = now();
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[512];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        fail(error);
}

static void set_header(const char *text) {
    if (sscanf(text, "%63[^:]:%ld:%ld:%ld", header.name, &header.first, &header.cycle,
               &header.every) != 4 || header.cycle < 1 || header.every < 1)
        fail("expected header=NAME:FIRST:CYCLE:EVERY");
}

static void set_pairs(rd_kafka_conf_t *conf, int count, char **pairs) {
    for (int i = 0; i < count; i++) {
        char *equals = strchr(pairs[i], '=');
        if (!equals)
            fail("expected key=value");
        *equals = 0;
        if (!strcmp(pairs[i], "header"))
            set_header(equals + 1);
        else
            set(conf, pairs[i], equals + 1);
        *equals = '=';
    }
}

static rd_kafka_t *new_client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char error[512];
    rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
    if (!client)
        fail(error);
    return client;
}

static rd_kafka_t *new_producer(const char *brokers, const char *acks, int count, char **pairs) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "bootstrap.servers", brokers);
    set(conf, "broker.address.family", "v4");
    set(conf, "queue.buffering.max.messages", "2000000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    set(conf, "acks", acks);
    set_pairs(conf, count, pairs);
    return new_client(RD_KAFKA_PRODUCER, conf);
}

static rd_kafka_t *new_consumer(const char *brokers, int count, char **pairs) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", brokers);
    set(conf, "broker.address.family", "v4");
    set(conf, "group.id", "qbench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "auto.offset.reset", "earliest");
    set(conf, "fetch.message.max.bytes", "4194304");
    set(conf, "queued.max.messages.kbytes", "200000");
    set_pairs(conf, count, pairs);
    rd_kafka_t *client = new_client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(client);
    return client;
}

static int partition_count(rd_kafka_t *client, const char *topic) {
    rd_kafka_topic_t *handle = rd_kafka_topic_new(client, topic, NULL);
    int count = 0;
    for (int i = 0; i < 100 && count == 0; i++) {
        const struct rd_kafka_metadata *metadata;
        if (rd_kafka_metadata(client, 0, handle, &metadata, 5000) == RD_KAFKA_RESP_ERR_NO_ERROR) {
            if (metadata->topic_cnt && !metadata->topics[0].err)
                count = metadata->topics[0].partition_cnt;
            rd_kafka_metadata_destroy(metadata);
        }
        if (!count)
            usleep(100000);
    }
    rd_kafka_topic_destroy(handle);
    if (!count)
        fail("no such topic");
    return count;
}

static void assign(rd_kafka_t *consumer, const char *topic, int partitions, int64_t offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    for (int p = 0; p < partitions; p++)
        rd_kafka_topic_partition_list_add(list, topic, p)->offset = offset;
    rd_kafka_assign(consumer, list);
    rd_kafka_topic_partition_list_destroy(list);
}

/* --- results ----------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_percentiles(double *seconds, long count) {
    if (count < 1)
        fail("nothing was measured");
    qsort(seconds, count, sizeof *seconds, ascending);
    printf(" n=%ld p50_us=%.0f p90_us=%.0f p99_us=%.0f p999_us=%.0f max_us=%.0f\n", count,
           seconds[count / 2] * 1e6, seconds[(long)(count * .9)] * 1e6,
           seconds[(long)(count * .99)] * 1e6, seconds[(long)(count * .999)] * 1e6,
           seconds[count - 1] * 1e6);
}

/* --- produce ----------------------------------------------------------------------------------- */

static char *random_text(int size) {
    char *text = must(malloc(size));
    unsigned state = 12345;
    for (int i = 0; i < size; i++) {
        state = state * 1103515245 + 12345;
        text[i] = 'a' + (state >> 16) % 26;
    }
    return text;
}

/* Hands `count` records to the client; while its queue is full, waits for acks and tries those
 * again that did not fit. */
static void enqueue(rd_kafka_t *producer, rd_kafka_topic_t *topic, int partition,
                    rd_kafka_message_t *messages, int count) {
    while (rd_kafka_produce_batch(topic, partition, RD_KAFKA_MSG_F_COPY, messages, count) < count) {
        int left = 0;
        for (int i = 0; i < count; i++) {
            if (messages[i].err == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
                messages[left] = messages[i];
                messages[left++].err = RD_KAFKA_RESP_ERR_NO_ERROR;
            } else if (messages[i].err) {
                fail(rd_kafka_err2str(messages[i].err));
            }
        }
        if (!left)
            return;
        count = left;
        rd_kafka_poll(producer, 10);
    }
}

/* Hands one record with its header to the client; `number` counts the records. */
static void enqueue_headed(rd_kafka_t *producer, rd_kafka_topic_t *topic, int partition,
                           char *payload, int size, long number) {
    char value[32];
    int length = snprintf(value, sizeof value, "%ld",
                          header.first + number / header.every % header.cycle);
    rd_kafka_resp_err_t error;
    while ((error = rd_kafka_producev(producer, RD_KAFKA_V_RKT(topic),
                                      RD_KAFKA_V_PARTITION(partition),
                                      RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                                      RD_KAFKA_V_VALUE(payload, size),
                                      RD_KAFKA_V_HEADER(header.name, value, length),
                                      RD_KAFKA_V_END)) == RD_KAFKA_RESP_ERR__QUEUE_FULL)
        rd_kafka_poll(producer, 10);
    if (error)
        fail(rd_kafka_err2str(error));
}

static int produce(const char *brokers, const char *topic, int argc, char **argv) {
    long count = atol(argv[0]);
    int size = atoi(argv[1]);
    rd_kafka_t *producer = new_producer(brokers, argv[2], argc - 3, argv + 3);
    int partitions = partition_count(producer, topic);
    rd_kafka_topic_t *handle = rd_kafka_topic_new(producer, topic, NULL);
    char *text = random_text(size + PAYLOAD_SHIFTS);
    static rd_kafka_message_t messages[PRODUCE_BATCH];

    double start = now();
    for (long sent = 0; sent < count && now() - start < RUN_SECONDS_MAX; sent += PRODUCE_BATCH) {
        int batch = count - sent < PRODUCE_BATCH ? count - sent : PRODUCE_BATCH;
        memset(messages, 0, sizeof(messages[0]) * batch);
        for (int i = 0; i < batch; i++) {
            messages[i].payload = text + (sent + i) % PAYLOAD_SHIFTS;
            messages[i].len = size;
        }
        int partition = (sent / PRODUCE_BATCH) % partitions;
        if (!*header.name)
            enqueue(producer, handle, partition, messages, batch);
        else
            for (int i = 0; i < batch; i++)
                enqueue_headed(producer, handle, partition, messages[i].payload, size, sent + i);
        rd_kafka_poll(producer, 0);
    }
    while (acked + failed < count && now() - start < RUN_SECONDS_MAX)
        rd_kafka_poll(producer, 50);

    double seconds = last_ack - start;
    printf("produce acked=%ld failed=%ld seconds=%.6f records_per_s=%.0f mb_per_s=%.3f\n", acked,
           failed, seconds, acked / seconds, acked * (double)size / seconds / 1e6);
    rd_kafka_topic_destroy(handle);
    rd_kafka_destroy(producer);
    return failed || acked < count;
}

/* --- transactions ------------------------------------------------------------------------------ */

static void must_succeed(rd_kafka_error_t *error) {
    if (error)
        fail(rd_kafka_error_string(error));
}

/* Each transaction has its records in all partitions of the topic, an equal part in each. */
static int transactions(const char *brokers, const char *topic, int argc, char **argv) {
    long count = atol(argv[0]), warm_up = count / 10, measured = 0;
    int records = atoi(argv[1]), size = atoi(argv[2]);
    char id[256];
    snprintf(id, sizeof id, "transactional.id=%s", topic);
    char *pairs[64] = {id};
    if (argc - 3 > 62)
        fail("too many settings");
    memcpy(pairs + 1, argv + 3, sizeof *pairs * (argc - 3));
    rd_kafka_t *producer = new_producer(brokers, "all", argc - 2, pairs);
    int partitions = partition_count(producer, topic);
    if (records % partitions || records / partitions > PRODUCE_BATCH)
        fail("the records of a transaction must be spread evenly");
    int part = records / partitions;
    rd_kafka_topic_t *handle = rd_kafka_topic_new(producer, topic, NULL);
    char *text = random_text(size + PAYLOAD_SHIFTS);
    double *seconds = must(malloc(count * sizeof *seconds)), measured_from = 0;
    static rd_kafka_message_t messages[PRODUCE_BATCH];
    must_succeed(rd_kafka_init_transactions(producer, 60000));

    double start = now();
    for (long i = 0; i < count + warm_up && now() - start < RUN_SECONDS_MAX; i++) {
        double began = now();
        if (i == warm_up)
            measured_from = began;
        must_succeed(rd_kafka_begin_transaction(producer));
        for (int partition = 0; partition < partitions; partition++) {
            memset(messages, 0, sizeof(messages[0]) * part);
            for (int j = 0; j < part; j++) {
                messages[j].payload = text + j % PAYLOAD_SHIFTS;
                messages[j].len = size;
            }
            enqueue(producer, handle, partition, messages, part);
        }
        must_succeed(rd_kafka_commit_transaction(producer, 60000));
        if (i >= warm_up)
            seconds[measured++] = now() - began;
    }

    double took = now() - measured_from;
    printf("transactions failed=%ld seconds=%.6f transactions_per_s=%.1f records_per_s=%.0f", failed,
           took, measured / took, measured * (double)records / took);
    print_percentiles(seconds, measured);
    rd_kafka_topic_destroy(handle);
    rd_kafka_destroy(producer);
    return failed || measured < count;
}

/* --- consume ----------------------------------------------------------------------------------- */

static int consume(const char *brokers, const char *topic, int argc, char **argv) {
    long count = atol(argv[0]), got = 0;
    double bytes = 0;
    rd_kafka_t *consumer = new_consumer(brokers, argc - 1, argv + 1);
    int partitions = partition_count(consumer, topic);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    static rd_kafka_message_t *messages[CONSUME_BATCH];

    double start = now(), first = 0, last = start;
    assign(consumer, topic, partitions, RD_KAFKA_OFFSET_BEGINNING);
    while (got < count && now() - last < IDLE_SECONDS_MAX && now() - start < RUN_SECONDS_MAX) {
        ssize_t batch = rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH);
        for (ssize_t i = 0; i < batch; i++) {
            if (!messages[i]->err) {
                got++;
                bytes += messages[i]->len;
            }
            rd_kafka_message_destroy(messages[i]);
        }
        if (batch > 0) {
            last = now();
            if (!first)
                first = last;
        }
    }

    double seconds = last - start;
    if (!got)
        fail("nothing to consume");
    printf("consume got=%ld seconds=%.6f records_per_s=%.0f mb_per_s=%.3f first_ms=%.1f\n", got,
           seconds, got / seconds, bytes / seconds / 1e6, (first - start) * 1e3);
    rd_kafka_queue_destroy(queue);
    rd_kafka_consumer_close(consumer);
    rd_kafka_destroy(consumer);
    return got < count;
}

/* --- latency of an ack ------------------------------------------------------------------------- */

static int latency(const char *brokers, const char *topic, int argc, char **argv) {
    long count = atol(argv[0]), warm_up = count / 5, measured = 0;
    int size = atoi(argv[1]);
    rd_kafka_t *producer = new_producer(brokers, argv[2], argc - 3, argv + 3);
    partition_count(producer, topic);
    rd_kafka_topic_t *handle = rd_kafka_topic_new(producer, topic, NULL);
    char *payload = must(calloc(1, size));
    double *seconds = must(malloc(count * sizeof *seconds));

    double start = now();
    for (long i = 0; i < count + warm_up && now() - start < RUN_SECONDS_MAX; i++) {
        long wanted = acked + failed + 1;
        double sent = now();
        rd_kafka_produce(handle, 0, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0, NULL);
        while (acked + failed < wanted)
            rd_kafka_poll(producer, 10);
        if (i >= warm_up)
            seconds[measured++] = last_ack - sent;
    }

    printf("latency failed=%ld", failed);
    print_percentiles(seconds, measured);
    rd_kafka_topic_destroy(handle);
    rd_kafka_destroy(producer);
    return failed || measured < count;
}

/* --- end to end -------------------------------------------------------------------------------- */

/* Each payload begins with the moment it was sent; both threads read the same clock. */
struct reader {
    rd_kafka_t *consumer;
    long wanted;
    double *seconds;
    atomic_long got;
    atomic_int stop;
};

static void *read_back(void *opaque) {
    struct reader *reader = opaque;
    while (!reader->stop && reader->got < reader->wanted) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(reader->consumer, 100);
        if (!message)
            continue;
        if (!message->err && message->len >= sizeof(double)) {
            double sent;
            memcpy(&sent, message->payload, sizeof sent);
            reader->seconds[reader->got] = now() - sent;
            reader->got++;
        }
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

static void wait_until(rd_kafka_t *producer, double due) {
    while (now() < due) {
        rd_kafka_poll(producer, 0);
        double gap = due - now();
        if (gap > 0.0002)
            usleep((int)(gap * 5e5));
    }
}

static void send_paced(rd_kafka_t *producer, const char *topic, int partitions, int size, long rate,
                       long count) {
    rd_kafka_topic_t *handle = rd_kafka_topic_new(producer, topic, NULL);
    char *payload = must(calloc(1, size + sizeof(double)));
    double start = now();
    for (long i = 0; i < count && now() - start < RUN_SECONDS_MAX; i++) {
        wait_until(producer, start + (double)i / rate);
        double sent = now();
        memcpy(payload, &sent, sizeof sent);
        if (*header.name) {
            enqueue_headed(producer, handle, i % partitions, payload, size, i);
            continue;
        }
        while (rd_kafka_produce(handle, i % partitions, RD_KAFKA_MSG_F_COPY, payload, size, NULL, 0,
                                NULL) &&
               now() - start < RUN_SECONDS_MAX)
            rd_kafka_poll(producer, 1);
    }
    rd_kafka_flush(producer, 30000);
    rd_kafka_topic_destroy(handle);
    free(payload);
}

static int end_to_end(const char *brokers, const char *topic, int argc, char **argv) {
    long rate = atol(argv[0]), count = rate * atol(argv[1]);
    int size = atoi(argv[2]);
    if (size < (int)sizeof(double))
        fail("a record must hold a time stamp");
    rd_kafka_t *producer = new_producer(brokers, argv[3], argc - 4, argv + 4);
    int partitions = partition_count(producer, topic);
    char *pairs[] = {strdup("fetch.wait.max.ms=100")};
    struct reader reader = {.consumer = new_consumer(brokers, 1, pairs),
                            .wanted = count,
                            .seconds = must(malloc(count * sizeof(double)))};
    assign(reader.consumer, topic, partitions, RD_KAFKA_OFFSET_END);
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_back, &reader))
        fail("no thread");
    sleep(SETTLE_SECONDS);

    send_paced(producer, topic, partitions, size, rate, count);
    double deadline = now() + IDLE_SECONDS_MAX;
    while (reader.got < count && now() < deadline)
        usleep(50000);
    reader.stop = 1;
    pthread_join(thread, NULL);

    long got = reader.got, warm_up = got / 10;
    printf("e2e sent=%ld got=%ld failed=%ld", count, got, failed);
    print_percentiles(reader.seconds + warm_up, got - warm_up);
    rd_kafka_consumer_close(reader.consumer);
    rd_kafka_destroy(reader.consumer);
    rd_kafka_destroy(producer);
    return failed || got < count;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int arguments;
        int (*run)(const char *brokers, const char *topic, int argc, char **argv);
    } modes[] = {
        {"produce", 3, produce},
        {"consume", 1, consume},
        {"latency", 3, latency},
        {"e2e", 4, end_to_end},
        {"transactions", 3, transactions},
    };
    for (size_t i = 0; argc > 3 && i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[3], modes[i].name) && argc >= 4 + modes[i].arguments)
            return modes[i].run(argv[1], argv[2], argc - 4, argv + 4);
    fail("usage: qbench BROKERS TOPIC produce|consume|latency|e2e|transactions ... (see the head of qbench.c)");
}
