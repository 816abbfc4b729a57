// franz-go against Tidemill brokers: `franz-go HOST:PORT[,HOST:PORT...]`. The first failure ends it with code 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const recordCount = 1000

var november2023 = time.UnixMilli(1_700_000_000_000)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := runAll(ctx, strings.Split(os.Args[1], ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runAll(ctx context.Context, bootstrap []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	checks := []struct {
		name string
		run  func() error
	}{
		{"a topic's whole life", func() error { return topicLife(ctx, admin) }},
		{"round trips", func() error { return roundTrips(ctx, admin, bootstrap) }},
		{"times", func() error { return times(ctx, admin) }},
		{"a classic group", func() error { return readAsGroup(ctx, admin, bootstrap, "go-gzip") }},
		{"held records", func() error { return passOverHolds(ctx, admin, bootstrap) }},
		{"deleting records", func() error { return deleteRecords(ctx, admin) }},
		{"views", func() error { return drainViews(ctx, admin, bootstrap) }},
		{"commit and abort", func() error { return commitsAndAborts(ctx, admin, bootstrap) }},
		{"fencing", func() error { return fences(ctx, admin, bootstrap) }},
		{"consume, transform, produce", func() error { return copies(ctx, admin, bootstrap) }},
	}
	for _, check := range checks {
		if err := check.run(); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		fmt.Println("ok:", check.name)
	}
	return nil
}

func topicLife(ctx context.Context, admin *kadm.Client) error {
	retention := "60000"
	config := map[string]*string{"retention.ms": &retention}
	if _, err := admin.CreateTopic(ctx, 2, -1, config, "go-life"); err != nil {
		return err
	}
	_, err := admin.CreateTopic(ctx, 2, -1, nil, "go-life")
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("made twice: %v", err)
	}
	if _, err := admin.UpdatePartitions(ctx, 4, "go-life"); err != nil {
		return err
	}
	topics, err := admin.ListTopics(ctx, "go-life")
	if err != nil {
		return err
	}
	if found := len(topics["go-life"].Partitions); found != 4 {
		return fmt.Errorf("%d partitions", found)
	}
	_, err = admin.DeleteTopic(ctx, "go-life")
	return err
}

func roundTrips(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		if err := roundTrip(ctx, admin, bootstrap, name, codec); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func roundTrip(
	ctx context.Context,
	admin *kadm.Client,
	bootstrap []string,
	name string,
	codec kgo.CompressionCodec,
) error {
	topic := "go-" + name
	if _, err := admin.CreateTopic(ctx, 2, -1, nil, topic); err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ProducerBatchCompression(codec),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			topic: {0: kgo.NewOffset().AtStart(), 1: kgo.NewOffset().AtStart()},
		}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records(topic)...).FirstErr(); err != nil {
		return err
	}
	return readBack(ctx, client)
}

func records(topic string) []*kgo.Record {
	made := make([]*kgo.Record, recordCount)
	for n := range made {
		made[n] = &kgo.Record{
			Topic:     topic,
			Partition: int32(n % 2),
			Key:       []byte(fmt.Sprint("key-", n)),
			Value:     []byte(fmt.Sprint("compress me ", n)),
			Headers:   []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(n))}},
			Timestamp: november2023.Add(time.Duration(n) * time.Millisecond),
		}
	}
	return made
}

func readBack(ctx context.Context, client *kgo.Client) error {
	for count := 0; count < recordCount; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			n := int(record.Offset)*2 + int(record.Partition)
			if want := fmt.Sprint("compress me ", n); string(record.Value) != want {
				return fmt.Errorf("%q is not %q", record.Value, want)
			}
			if string(record.Headers[0].Value) != fmt.Sprint(n) {
				return fmt.Errorf("header %q of record %d", record.Headers[0].Value, n)
			}
			count++
		}
	}
	return nil
}

func readAsGroup(ctx context.Context, admin *kadm.Client, bootstrap []string, topic string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumerGroup("go-group"),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := readBack(ctx, client); err != nil {
		return err
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	lags, err := admin.Lag(ctx, "go-group")
	if err != nil {
		return err
	}
	if total := lags["go-group"].Lag.Total(); total != 0 {
		return fmt.Errorf("a lag of %d after the last record", total)
	}
	return nil
}

// Two of five records are held for an hour: only the others are read, and a view shows the held ones.
func passOverHolds(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	const topic = "go-held"
	isHeld := func(n int) bool { return n%5 < 2 }
	if _, err := admin.CreateTopic(ctx, 2, -1, nil, topic); err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	sent := records(topic)
	for n, record := range sent {
		if isHeld(n) {
			delay := kgo.RecordHeader{Key: "tidemill.delay-ms", Value: []byte("3600000")}
			record.Headers = append(record.Headers, delay)
		}
	}
	if err := client.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return err
	}
	for count := 0; count < recordCount*3/5; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if n := int(record.Offset)*2 + int(record.Partition); isHeld(n) {
				return fmt.Errorf("record %d is held", n)
			}
			count++
		}
	}
	base, yes := topic, "true"
	keys := map[string]*string{"tidemill.view.of": &base, "tidemill.view.held": &yes}
	if _, err := admin.CreateTopic(ctx, -1, -1, keys, topic+".held"); err != nil {
		return err
	}
	var held []int
	for n := range recordCount {
		if isHeld(n) {
			held = append(held, n)
		}
	}
	return drainView(ctx, bootstrap, topic+".held", held)
}

func times(ctx context.Context, admin *kadm.Client) error {
	found, err := admin.ListOffsetsAfterMilli(ctx, november2023.UnixMilli()+501, "go-gzip")
	if err != nil {
		return err
	}
	for partition, want := range map[int32]int64{0: 251, 1: 250} {
		if offset, _ := found.Lookup("go-gzip", partition); offset.Offset != want {
			return fmt.Errorf("partition %d: offset %d, not %d", partition, offset.Offset, want)
		}
	}
	return nil
}

func deleteRecords(ctx context.Context, admin *kadm.Client) error {
	var until kadm.Offsets
	until.Add(kadm.Offset{Topic: "go-none", Partition: 0, At: 100})
	if _, err := admin.DeleteRecords(ctx, until); err != nil {
		return err
	}
	starts, err := admin.ListStartOffsets(ctx, "go-none")
	if err != nil {
		return err
	}
	if offset, _ := starts.Lookup("go-none", 0); offset.Offset != 100 {
		return fmt.Errorf("the log begins at %d", offset.Offset)
	}
	return nil
}
