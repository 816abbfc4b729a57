// Transactions of kafkajs against Tidemill brokers: `node transactions.js HOST:PORT[,HOST:PORT...]`.
// A failure ends it with code 1.

const assert = require('node:assert/strict')
const { Kafka, logLevel } = require('kafkajs')

const kafka = new Kafka({ brokers: process.argv[2].split(','), logLevel: logLevel.NOTHING })
const admin = kafka.admin()
const DEADLINE_MS = 60_000
const PARTITIONS = 3

async function producerOf(transactionalId, options = {}) {
  const producer = kafka.producer({
    transactionalId,
    maxInFlightRequests: 1,
    idempotent: true,
    retry: { retries: 10 },
    ...options,
  })
  await producer.connect()
  return producer
}

function messages(first, count = 30) {
  return Array.from({ length: count }, (_, n) => ({
    value: `r${first + n}`,
    partition: n % PARTITIONS,
    headers: { odd: (first + n) % 2 ? 'yes' : 'no' },
  }))
}

function values(...firsts) {
  return firsts.flatMap((first) => messages(first).map(({ value }) => value)).sort()
}

async function createTopic(topic, configEntries = []) {
  const isView = configEntries.length > 0
  await admin.createTopics({
    topics: [{ topic, numPartitions: isView ? -1 : PARTITIONS, configEntries }],
    waitForLeaders: true,
  })
}

// What a reader of committed records, or of all, sees until it has `least` and nothing more comes.
async function read(topic, least, readUncommitted = false) {
  const groupId = `${topic}-${readUncommitted ? 'all' : 'committed'}-${Date.now()}`
  const consumer = kafka.consumer({ groupId, heartbeatInterval: 200, readUncommitted })
  const seen = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => seen.push(message.value.toString()) })
  const deadline = Date.now() + DEADLINE_MS
  while (seen.length < least && Date.now() < deadline) await pause(100)
  await pause(1_000)
  await consumer.disconnect()
  return seen.sort()
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

async function commits() {
  await createTopic('jstxn-commit')
  const producer = await producerOf('jstxn-commit')
  const transaction = await producer.transaction()
  await transaction.send({ topic: 'jstxn-commit', messages: messages(0) })
  assert.deepEqual(await read('jstxn-commit', 30, true), values(0))
  assert.deepEqual(await read('jstxn-commit', 0), [])
  await transaction.commit()
  await producer.disconnect()
  assert.deepEqual(await read('jstxn-commit', 30), values(0))
}

async function mixes() {
  await createTopic('jstxn-mix')
  const producer = await producerOf('jstxn-mix')
  for (let round = 0; round < 6; round++) {
    const transaction = await producer.transaction()
    await transaction.send({ topic: 'jstxn-mix', messages: messages(100 * round) })
    await (round % 2 ? transaction.commit() : transaction.abort())
  }
  await producer.disconnect()
  assert.deepEqual(await read('jstxn-mix', 90), values(100, 300, 500))
}

async function fences() {
  await createTopic('jstxn-fence')
  const old = await producerOf('jstxn-fence', { retry: { retries: 1 } })
  const late = await old.transaction()
  await late.send({ topic: 'jstxn-fence', messages: messages(0) })
  const successor = await producerOf('jstxn-fence')
  const transaction = await successor.transaction()
  await transaction.send({ topic: 'jstxn-fence', messages: messages(100) })
  await transaction.commit()
  await assert.rejects(late.commit(), /epoch|fenced|newer/i)
  await old.disconnect()
  await successor.disconnect()
  assert.deepEqual(await read('jstxn-fence', 30), values(100))
}

// Consume, transform, produce: every second transaction is aborted, and its batch comes again.
async function copies(source, target) {
  await createTopic(target)
  const producer = await producerOf(target)
  const consumer = kafka.consumer({ groupId: target, heartbeatInterval: 200 })
  const copied = []
  let transactions = 0
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset }) => {
      if (!batch.messages.length) return
      const { topic, partition } = batch
      const send = async (transaction) => {
        const made = batch.messages.map(({ value }) => ({ value: `copy of ${value}`, partition }))
        await transaction.send({ topic: target, messages: made })
        const offset = String(Number(batch.lastOffset()) + 1)
        const topics = [{ topic, partitions: [{ partition, offset }] }]
        await transaction.sendOffsets({ consumerGroupId: target, topics })
      }
      const dropped = await producer.transaction()
      await send(dropped)
      await dropped.abort()
      const kept = await producer.transaction()
      await send(kept)
      await kept.commit()
      transactions++
      copied.push(...batch.messages)
      resolveOffset(batch.lastOffset())
    },
  })
  const expected = source.endsWith('.odd') ? 45 : 90
  const deadline = Date.now() + DEADLINE_MS
  while (copied.length < expected && Date.now() < deadline) await pause(100)
  await consumer.disconnect()
  await producer.disconnect()
  const all = [0, 100, 200].flatMap((first) => messages(first))
  const wanted = all
    .filter(({ headers }) => expected === 90 || headers.odd === 'yes')
    .map(({ value }) => `copy of ${value}`)
    .sort()
  assert.deepEqual(await read(target, expected), wanted)
  const committed = await admin.fetchOffsets({ groupId: target, topics: [source] })
  const offsets = committed[0].partitions.map(({ offset }) => Number(offset))
  assert.ok(offsets.every((offset) => offset >= 30), `committed: ${offsets}`)
  assert.ok(transactions >= PARTITIONS)
}

async function main() {
  await admin.connect()
  await commits()
  await mixes()
  await fences()
  await createTopic('jstxn-in')
  const feeder = await producerOf('jstxn-in')
  for (const first of [0, 100, 200]) {
    const transaction = await feeder.transaction()
    await transaction.send({ topic: 'jstxn-in', messages: messages(first) })
    await transaction.commit()
  }
  await feeder.disconnect()
  await copies('jstxn-in', 'jstxn-out')
  await createTopic('jstxn-in.odd', [
    { name: 'tidemill.view.of', value: 'jstxn-in' },
    { name: 'tidemill.view.filter', value: "odd = 'yes'" },
  ])
  await copies('jstxn-in.odd', 'jstxn-odd')
  await admin.disconnect()
}

main().then(
  () => process.exit(0),
  (failure) => {
    console.error(failure)
    process.exit(1)
  },
)
