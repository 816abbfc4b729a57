// kafkajs against Tidemill brokers: `node interop.js HOST:PORT[,HOST:PORT...] BROKERS`. A failure
// ends it with code 1.

const assert = require('node:assert/strict')
const { CompressionTypes, Kafka, logLevel } = require('kafkajs')

const kafka = new Kafka({ brokers: process.argv[2].split(','), logLevel: logLevel.ERROR })
const admin = kafka.admin()
const DEADLINE_MS = 120_000

async function offsets(topic) {
  const found = await admin.fetchTopicOffsets(topic)
  return found.map(({ partition, offset }) => [partition, Number(offset)]).sort()
}

async function runTopicThroughItsLife() {
  const configEntries = [{ name: 'retention.ms', value: '60000' }]
  const topics = [{ topic: 'js-life', numPartitions: 2, configEntries }]
  assert.equal(await admin.createTopics({ topics }), true)
  assert.equal(await admin.createTopics({ topics }), false)
  await admin.createPartitions({ topicPartitions: [{ topic: 'js-life', count: 4 }] })
  const metadata = await admin.fetchTopicMetadata({ topics: ['js-life'] })
  assert.equal(metadata.topics[0].partitions.length, 4)
  const { resources } = await admin.describeConfigs({
    resources: [{ type: 2, name: 'js-life', configNames: ['retention.ms'] }],
  })
  assert.equal(resources[0].configEntries[0].configValue, '60000')
  await admin.deleteTopics({ topics: ['js-life'] })
  assert.ok(!(await admin.listTopics()).includes('js-life'))
}

// `more(n)` are further headers of record n.
async function send(topic, options, compression, more = () => ({})) {
  const producer = kafka.producer(options)
  await producer.connect()
  try {
    const messages = Array.from({ length: 1000 }, (_, n) => ({
      key: `key-${n}`,
      value: `compress me ${n}`,
      partition: n % 2,
      headers: { number: String(n), ...more(n) },
    }))
    await producer.send({ topic, messages, compression })
  } finally {
    await producer.disconnect()
  }
}

async function sendAndCount(topic, options, compression, more) {
  await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] })
  await send(topic, options, compression, more)
  assert.deepEqual(await offsets(topic), [[0, 500], [1, 500]])
}

async function readAsGroup(topic) {
  const groupId = `group-${topic}`
  const seen = new Set()
  const consumers = [0, 1].map(() => kafka.consumer({ groupId, heartbeatInterval: 200 }))
  const owners = new Set()
  const done = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${seen.size} records by ${owners.size} members`)), DEADLINE_MS)
    const eachMessage = (index) => async ({ message }) => {
      seen.add(message.value.toString())
      owners.add(index)
      if (seen.size >= 1000 && owners.size === 2) resolve()
    }
    consumers.forEach(async (consumer, index) => {
      await consumer.connect()
      await consumer.subscribe({ topics: [topic], fromBeginning: true })
      await consumer.run({ eachMessage: eachMessage(index) })
    })
  })
  const feeder = setInterval(() => send(topic, {}, CompressionTypes.None).catch(() => {}), 500)
  await done
  clearInterval(feeder)
  await Promise.all(consumers.map((consumer) => consumer.disconnect()))
  const { groups } = await admin.describeGroups([groupId])
  assert.equal(groups[0].members.length, 0)
  await admin.deleteGroups([groupId])
}

async function drainView(base, name, key, value, expected) {
  const topic = `${base}.${name}`
  const configEntries = [
    { name: 'tidemill.view.of', value: base },
    { name: key, value },
  ]
  await admin.createTopics({
    topics: [{ topic, numPartitions: -1, replicationFactor: -1, configEntries }],
  })
  await drain(topic, expected)
}

// What may be seen is seen, and the position passes what may not, without a spin.
async function drain(topic, expected) {
  const consumer = kafka.consumer({ groupId: `group-${topic}`, heartbeatInterval: 200 })
  const seen = []
  const passed = [-1, -1]
  let fetches = 0
  consumer.on(consumer.events.FETCH, () => fetches++)
  consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    passed[payload.partition] = Number(payload.lastOffset)
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ message }) => seen.push(Number(message.headers.number)),
  })
  const deadline = Date.now() + DEADLINE_MS
  while (passed.some((offset) => offset < 499) && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  const atTheEnd = fetches
  await new Promise((resolve) => setTimeout(resolve, 2_000))
  await consumer.disconnect()
  assert.deepEqual(passed, [499, 499])
  assert.ok(fetches - atTheEnd < 20, `${fetches - atTheEnd} fetches in two seconds at the end`)
  assert.deepEqual(seen.sort((a, b) => a - b), expected)
}

async function drainViews() {
  const numbers = Array.from({ length: 1000 }, (_, n) => n)
  await sendAndCount('js-viewed', {}, CompressionTypes.GZIP)
  const filter = 'tidemill.view.filter'
  const few = [0, 1, 2, 3, 4, 5, 6, 900]
  await drainView('js-viewed', 'none', filter, 'missing = 1', [])
  await drainView('js-viewed', 'few', filter, 'number < 7 OR number = 900', few)
  const half = numbers.filter((n) => n >= 500)
  await drainView('js-viewed', 'half', filter, 'number >= 500', half)
  await drainView('js-viewed', 'all', filter, '', numbers)
}

// Some records are held for an hour, among them the last ones.
async function passOverHolds() {
  const numbers = Array.from({ length: 1000 }, (_, n) => n)
  const isHeld = (n) => n % 5 >= 3
  const delay = (n) => (isHeld(n) ? { 'tidemill.delay-ms': '3600000' } : {})
  for (const codec of ['None', 'GZIP']) {
    const topic = `js-held-${codec}`
    await sendAndCount(topic, {}, CompressionTypes[codec], delay)
    await drain(topic, numbers.filter((n) => !isHeld(n)))
    await drainView(topic, 'held', 'tidemill.view.held', 'true', numbers.filter(isHeld))
  }
}

async function deleteRecords() {
  const partitions = [{ partition: 0, offset: '100' }]
  await admin.deleteTopicRecords({ topic: 'js-none', partitions })
  const found = await admin.fetchTopicOffsets('js-none')
  assert.equal(found.find(({ partition }) => partition === 0).low, '100')
}

async function findTimes() {
  const byTime = await admin.fetchTopicOffsetsByTimestamp('js-gzip', 1)
  assert.deepEqual(byTime.map(({ offset }) => offset), ['0', '0'])
}

// Says how far it came: whoever stops it sees where it hung.
async function check(name, run) {
  await run()
  console.log(`ok: ${name}`)
}

async function main() {
  await admin.connect()
  const { brokers, controller } = await admin.describeCluster()
  assert.equal(brokers.length, Number(process.argv[3]))
  assert.ok(controller >= 0 && controller < brokers.length)
  const idempotent = { idempotent: true, maxInFlightRequests: 1 }
  await check('a topic\'s whole life', runTopicThroughItsLife)
  await check('plain batches', () => sendAndCount('js-none', {}, CompressionTypes.None))
  await check('gzip', () => sendAndCount('js-gzip', {}, CompressionTypes.GZIP))
  await check('idempotence', () => sendAndCount('js-idempotent', idempotent, CompressionTypes.None))
  await check('deleting records', deleteRecords)
  await check('a group', () => readAsGroup('js-idempotent'))
  await check('views', drainViews)
  await check('held records', passOverHolds)
  await check('times', findTimes)
  await admin.disconnect()
}

main().then(
  () => process.exit(0),
  (failure) => {
    console.error(failure)
    process.exit(1)
  },
)
