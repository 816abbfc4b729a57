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

// drainViews reads views of 0, 1, 50 and 100 % of a topic as a group, to the end.
func drainViews(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	all := make([]int, recordCount)
	for n := range all {
		all[n] = n
	}
	views := map[string]struct {
		where    string
		expected []int
	}{
		"none": {"missing = 1", nil},
		"few":  {"number < 9 OR number = 900", append(slices.Clone(all[:9]), 900)},
		"half": {"number >= 500", all[500:]},
		"all":  {"", all},
	}
	for name, view := range views {
		topic := "go-zstd." + name
		if err := createView(ctx, admin, topic, "go-zstd", view.where); err != nil {
			return err
		}
		if err := drainView(ctx, admin, bootstrap, topic, view.expected); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func createView(ctx context.Context, admin *kadm.Client, name, of, where string) error {
	config := map[string]*string{"tidemill.view.of": &of, "tidemill.view.filter": &where}
	_, err := admin.CreateTopic(ctx, -1, -1, config, name)
	return err
}

// drainView polls until the group has committed the end: it must pass what the view leaves out.
func drainView(
	ctx context.Context, admin *kadm.Client, bootstrap []string, topic string, expected []int,
) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var seen []int
	for committed := int64(0); committed < recordCount; {
		if ctx.Err() != nil {
			return fmt.Errorf("at offset %d, after %d records: %w", committed, len(seen), ctx.Err())
		}
		for _, record := range poll(ctx, client) {
			if record.Attrs.IsControl() {
				continue
			}
			number, err := strconv.Atoi(string(record.Headers[0].Value))
			if err != nil {
				return err
			}
			seen = append(seen, number)
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		offsets, err := admin.FetchOffsets(ctx, topic)
		if err != nil {
			return err
		}
		committed = 0
		offsets.Each(func(one kadm.OffsetResponse) { committed += max(0, one.At) })
	}
	slices.Sort(seen)
	if !slices.Equal(seen, expected) {
		return fmt.Errorf("%d records, not %d", len(seen), len(expected))
	}
	return nil
}

// poll returns what comes within a second.
func poll(ctx context.Context, client *kgo.Client) []*kgo.Record {
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return client.PollFetches(brief).Records()
}
