// Sarama against Tidemill brokers: `sarama HOST:PORT[,HOST:PORT...]`. The first failure ends it with
// code 1.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	partitions = 3
	patience   = 60 * time.Second
)

type checks struct {
	brokers []string
	admin   sarama.ClusterAdmin
}

func main() {
	if err := runAll(strings.Split(os.Args[1], ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runAll(brokers []string) error {
	admin, err := sarama.NewClusterAdmin(brokers, settings())
	if err != nil {
		return err
	}
	defer admin.Close()
	all := checks{brokers, admin}
	for _, check := range []struct {
		name string
		run  func() error
	}{
		{"round trips with every codec", all.roundTrips},
		{"commit and abort over three partitions", all.commitsAndAborts},
		{"fencing", all.fences},
		{"offsets in a transaction", all.sendsOffsets},
		{"views", all.drainsViews},
		{"held records", all.passesOverHolds},
	} {
		if err := check.run(); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		fmt.Println("ok:", check.name)
	}
	return nil
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config
}

func (all checks) createTopic(topic string, keys map[string]string) error {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1}
	for key, value := range keys {
		detail.NumPartitions = -1
		if detail.ConfigEntries == nil {
			detail.ConfigEntries = map[string]*string{}
		}
		detail.ConfigEntries[key] = &value
	}
	return all.admin.CreateTopic(topic, detail, false)
}

func (all checks) producer(id string) (sarama.SyncProducer, error) {
	config := settings()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Transaction.ID = id
	return sarama.NewSyncProducer(all.brokers, config)
}

// startIn creates a topic, and a producer whose transactions have the same name.
func (all checks) startIn(topic string) (sarama.SyncProducer, error) {
	if err := all.createTopic(topic, nil); err != nil {
		return nil, err
	}
	return all.producer(topic)
}

func numbered(topic string, first int) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, 30)
	for n := range made {
		number := fmt.Sprint(first + n)
		made[n] = &sarama.ProducerMessage{
			Topic:     topic,
			Partition: int32(n % partitions),
			Value:     sarama.StringEncoder("r" + number),
			Headers:   []sarama.RecordHeader{{Key: []byte("number"), Value: []byte(number)}},
		}
	}
	return made
}

func values(firsts ...int) []string {
	var found []string
	for _, first := range firsts {
		for n := range 30 {
			found = append(found, fmt.Sprint("r", first+n))
		}
	}
	slices.Sort(found)
	return found
}

// read returns what readers of all partitions see until there are `least` and nothing more comes.
func (all checks) read(topic string, least int) ([]string, error) {
	consumer, err := sarama.NewConsumer(all.brokers, settings())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	came := make(chan string, 10_000)
	for partition := range int32(partitions) {
		part, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		defer part.Close()
		go func() {
			for message := range part.Messages() {
				came <- string(message.Value)
			}
		}()
	}
	var found []string
	deadline := time.After(patience)
	for {
		select {
		case value := <-came:
			found = append(found, value)
		case <-deadline:
			return nil, fmt.Errorf("%d of %d records in %s", len(found), least, topic)
		case <-time.After(2 * time.Second):
			if len(found) >= least {
				slices.Sort(found)
				return found, nil
			}
		}
	}
}

func (all checks) expect(topic string, expected []string) error {
	found, err := all.read(topic, len(expected))
	if err != nil {
		return err
	}
	if !slices.Equal(found, expected) {
		return fmt.Errorf("%s: %d records, not %d", topic, len(found), len(expected))
	}
	return nil
}

func (all checks) roundTrips() error {
	if err := all.createTopic("sarama-codecs", nil); err != nil {
		return err
	}
	var firsts []int
	for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
		config := settings()
		config.Producer.Compression = codec
		producer, err := sarama.NewSyncProducer(all.brokers, config)
		if err != nil {
			return err
		}
		first := 100 * int(codec)
		err = producer.SendMessages(numbered("sarama-codecs", first))
		if err := errors.Join(err, producer.Close()); err != nil {
			return err
		}
		firsts = append(firsts, first)
	}
	return all.expect("sarama-codecs", values(firsts...))
}

func transact(producer sarama.SyncProducer, topic string, first int) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	return producer.SendMessages(numbered(topic, first))
}

func (all checks) commitsAndAborts() error {
	topic := "sarama-ends"
	producer, err := all.startIn(topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	for round := range 4 {
		if err := transact(producer, topic, 100*round); err != nil {
			return err
		}
		end := producer.AbortTxn
		if round%2 == 1 {
			end = producer.CommitTxn
		}
		if err := end(); err != nil {
			return err
		}
	}
	return all.expect(topic, values(100, 300))
}

func (all checks) fences() error {
	topic := "sarama-fence"
	old, err := all.startIn(topic)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := transact(old, topic, 0); err != nil {
		return err
	}
	successor, err := all.producer(topic)
	if err != nil {
		return err
	}
	defer successor.Close()
	if err := transact(successor, topic, 100); err != nil {
		return err
	}
	if err := successor.CommitTxn(); err != nil {
		return err
	}
	if err := old.CommitTxn(); err == nil {
		return errors.New("the first producer has committed")
	}
	if old.TxnStatus()&sarama.ProducerTxnFlagFatalError == 0 {
		return fmt.Errorf("the first producer may go on: %v", old.TxnStatus())
	}
	return all.expect(topic, values(100))
}

func (all checks) sendsOffsets() error {
	topic := "sarama-offsets"
	producer, err := all.startIn(topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	for round, end := range []func() error{producer.CommitTxn, producer.AbortTxn} {
		if err := transact(producer, topic, 100*round); err != nil {
			return err
		}
		offset := &sarama.PartitionOffsetMetadata{Partition: 1, Offset: int64(7 + round)}
		offsets := map[string][]*sarama.PartitionOffsetMetadata{topic: {offset}}
		if err := producer.AddOffsetsToTxn(offsets, topic); err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(patience)
	for {
		found, err := all.admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {1}})
		if err == nil && found.GetBlock(topic, 1).Offset == 7 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the committed offset is %v (%v)", found, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (all checks) drainsViews() error {
	base := "sarama-codecs"
	everything := values(0, 100, 200, 300, 400)
	var half []string
	for _, value := range everything {
		if len(value) == 4 && value >= "r300" {
			half = append(half, value)
		}
	}
	for _, view := range []struct {
		name, where string
		expected    []string
	}{
		{"none", "missing = 1", nil},
		{"few", "number = 7", []string{"r7"}},
		{"half", "number >= 300", half},
		{"all", "", everything},
	} {
		topic := base + "." + view.name
		keys := map[string]string{"tidemill.view.of": base, "tidemill.view.filter": view.where}
		if err := all.createTopic(topic, keys); err != nil {
			return err
		}
		if err := all.expect(topic, view.expected); err != nil {
			return err
		}
	}
	return nil
}

// Two of three records are held for an hour, the last ones too; some of them in a transaction that
// is aborted. A view shows what is held.
func (all checks) passesOverHolds() error {
	topic := "sarama-held"
	producer, err := all.startIn(topic)
	if err != nil {
		return err
	}
	defer producer.Close()
	var plain, held []string
	for round := range 4 {
		messages := numbered(topic, 100*round)
		isCommit := round%2 == 0
		for n, message := range messages {
			value := string(message.Value.(sarama.StringEncoder))
			isHeld := n >= 10
			if isHeld {
				delay := sarama.RecordHeader{Key: []byte("tidemill.delay-ms"), Value: []byte("3600000")}
				message.Headers = append(message.Headers, delay)
			}
			if isCommit && isHeld {
				held = append(held, value)
			} else if isCommit {
				plain = append(plain, value)
			}
		}
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages); err != nil {
			return err
		}
		end := producer.AbortTxn
		if isCommit {
			end = producer.CommitTxn
		}
		if err := end(); err != nil {
			return err
		}
	}
	slices.Sort(plain)
	slices.Sort(held)
	if err := all.expect(topic, plain); err != nil {
		return err
	}
	keys := map[string]string{"tidemill.view.of": topic, "tidemill.view.held": "true"}
	if err := all.createTopic(topic+".held", keys); err != nil {
		return err
	}
	return all.expect(topic+".held", held)
}
