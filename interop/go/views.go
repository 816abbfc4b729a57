package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// drainViews reads views of 1, 50, 100 and 0 % of a topic as groups. The last must pass everything
// to see what comes later.
func drainViews(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	all := make([]int, recordCount)
	for n := range all {
		all[n] = n
	}
	for _, view := range []struct {
		name, where string
		expected    []int
	}{
		{"few", "number < 9 OR number = 900", append(slices.Clone(all[:9]), 900)},
		{"half", "number >= 500", all[500:]},
		{"all", "", all},
		{"none", "late = 'yes'", nil},
	} {
		topic := "go-zstd." + view.name
		if err := createView(ctx, admin, topic, "go-zstd", view.where); err != nil {
			return err
		}
		if err := drainView(ctx, bootstrap, topic, view.expected); err != nil {
			return fmt.Errorf("%s: %w", view.name, err)
		}
	}
	return nil
}

func createView(ctx context.Context, admin *kadm.Client, name, of, where string) error {
	config := map[string]*string{"tidemill.view.of": &of, "tidemill.view.filter": &where}
	_, err := admin.CreateTopic(ctx, -1, -1, config, name)
	return err
}

func drainView(ctx context.Context, bootstrap []string, topic string, expected []int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if expected == nil {
		if found := poll(ctx, client); len(found) > 0 {
			return fmt.Errorf("%d records of an empty view", len(found))
		}
		late := []kgo.RecordHeader{{Key: "number", Value: []byte("1000")}, {Key: "late", Value: []byte("yes")}}
		for partition := range int32(2) {
			record := &kgo.Record{Topic: "go-zstd", Partition: partition, Headers: late}
			if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
				return err
			}
		}
		expected = []int{1000, 1000}
	}
	var seen []int
	for len(seen) < len(expected) {
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d records: %w", len(seen), len(expected), ctx.Err())
		}
		for _, record := range poll(ctx, client) {
			number, err := strconv.Atoi(string(record.Headers[0].Value))
			if err != nil {
				return err
			}
			seen = append(seen, number)
		}
	}
	if more := poll(ctx, client); len(more) > 0 {
		return fmt.Errorf("%d records more than %d", len(more), len(expected))
	}
	slices.Sort(seen)
	if !slices.Equal(seen, expected) {
		return fmt.Errorf("%v, not %v", seen, expected)
	}
	return nil
}

// poll returns what comes within two seconds.
func poll(ctx context.Context, client *kgo.Client) []*kgo.Record {
	brief, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.PollFetches(brief).Records()
}
