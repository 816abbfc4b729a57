package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

func transactional(bootstrap []string, id string) (*kgo.Client, error) {
	return kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.TransactionalID(id),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
}

// numbered returns 30 records over all partitions.
func numbered(topic string, first int) []*kgo.Record {
	made := make([]*kgo.Record, 30)
	for n := range made {
		value := fmt.Sprint("r", first+n)
		made[n] = &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: []byte(value)}
	}
	return made
}

func valuesOf(records []*kgo.Record) []string {
	found := make([]string, 0, len(records))
	for _, record := range records {
		found = append(found, string(record.Value))
	}
	slices.Sort(found)
	return found
}

func transact(
	ctx context.Context, client *kgo.Client, topic string, first int, end kgo.TransactionEndTry,
) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, numbered(topic, first)...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, end)
}

// readAll reads a topic from its start to the ends that this isolation level knows. Markers are kept
// until then: they are the last in their partitions.
func readAll(
	ctx context.Context, admin *kadm.Client, bootstrap []string, topic string, isolation kgo.IsolationLevel,
) ([]*kgo.Record, error) {
	list := admin.ListEndOffsets
	if isolation == kgo.ReadCommitted() {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(isolation),
		kgo.KeepControlRecords(),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var found []*kgo.Record
	for {
		isDone := true
		for partition := range int32(partitions) {
			end, _ := ends.Lookup(topic, partition)
			isDone = isDone && reached(found, partition) >= end.Offset
		}
		if isDone {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: not the end: %w", topic, ctx.Err())
		}
		found = append(found, poll(ctx, client)...)
	}
	return slices.DeleteFunc(found, func(one *kgo.Record) bool { return one.Attrs.IsControl() }), nil
}

func reached(records []*kgo.Record, partition int32) int64 {
	next := int64(0)
	for _, record := range records {
		if record.Partition == partition {
			next = max(next, record.Offset+1)
		}
	}
	return next
}

func expectValues(
	ctx context.Context,
	admin *kadm.Client,
	bootstrap []string,
	topic string,
	isolation kgo.IsolationLevel,
	expected ...[]*kgo.Record,
) error {
	found, err := readAll(ctx, admin, bootstrap, topic, isolation)
	if err != nil {
		return err
	}
	wanted := valuesOf(slices.Concat(expected...))
	if !slices.Equal(valuesOf(found), wanted) {
		return fmt.Errorf("%d records in %s, not %d", len(found), topic, len(wanted))
	}
	return nil
}

func commitsAndAborts(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	topic := "gotxn-ends"
	if _, err := admin.CreateTopic(ctx, partitions, -1, nil, topic); err != nil {
		return err
	}
	client, err := transactional(bootstrap, topic)
	if err != nil {
		return err
	}
	defer client.Close()
	for round, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := transact(ctx, client, topic, 100*round, end); err != nil {
			return err
		}
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, numbered(topic, 300)...).FirstErr(); err != nil {
		return err
	}
	everything := slices.Concat(
		numbered(topic, 0), numbered(topic, 100), numbered(topic, 200), numbered(topic, 300),
	)
	err = errors.Join(
		expectValues(ctx, admin, bootstrap, topic, kgo.ReadUncommitted(), everything),
		expectValues(ctx, admin, bootstrap, topic, kgo.ReadCommitted(), numbered(topic, 100)),
	)
	if err != nil {
		return err
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	return expectValues(
		ctx, admin, bootstrap, topic, kgo.ReadCommitted(), numbered(topic, 100), numbered(topic, 300),
	)
}

func fences(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	topic := "gotxn-fence"
	if _, err := admin.CreateTopic(ctx, partitions, -1, nil, topic); err != nil {
		return err
	}
	old, err := transactional(bootstrap, topic)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := old.BeginTransaction(); err != nil {
		return err
	}
	if err := old.ProduceSync(ctx, numbered(topic, 0)...).FirstErr(); err != nil {
		return err
	}
	successor, err := transactional(bootstrap, topic)
	if err != nil {
		return err
	}
	defer successor.Close()
	if err := transact(ctx, successor, topic, 100, kgo.TryCommit); err != nil {
		return err
	}
	err = old.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("the first producer was not fenced: %v", err)
	}
	return expectValues(ctx, admin, bootstrap, topic, kgo.ReadCommitted(), numbered(topic, 100))
}

// copies consumes, transforms and produces in transactions; each second one is aborted.
func copies(ctx context.Context, admin *kadm.Client, bootstrap []string) error {
	source, target := "gotxn-in", "gotxn-out"
	if _, err := admin.CreateTopics(ctx, partitions, -1, nil, source, target); err != nil {
		return err
	}
	feeder, err := transactional(bootstrap, source)
	if err != nil {
		return err
	}
	defer feeder.Close()
	var expected []*kgo.Record
	for first := 0; first < 600; first += 100 {
		if err := transact(ctx, feeder, source, first, kgo.TryCommit); err != nil {
			return err
		}
		expected = append(expected, numbered(target, first)...)
	}
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap...),
		kgo.TransactionalID(target),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(target),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for copied, ends := 0, 0; copied < len(expected); ends++ {
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d copied: %w", copied, len(expected), ctx.Err())
		}
		found := session.PollRecords(ctx, 50)
		if err := found.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for _, record := range found.Records() {
			session.Produce(ctx, &kgo.Record{
				Topic: target, Partition: record.Partition, Value: record.Value,
			}, nil)
		}
		committed, err := session.End(ctx, ends%2 == 1)
		if err != nil {
			return err
		}
		if committed {
			copied += found.NumRecords()
		}
	}
	return expectValues(ctx, admin, bootstrap, target, kgo.ReadCommitted(), expected)
}
