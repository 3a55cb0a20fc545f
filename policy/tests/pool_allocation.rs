//! A warm pool allocates nothing per request, as counted by this test's own allocator.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::pool::preset::Preset;
use policy::pool::queue::{Admission, Order, Queue};
use policy::pool::slots::{Decision, Evicted, Model, Pool, Topology};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{RequestId, Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;
const FUNCTIONS: u32 = 480;

struct Node {
    queue: Queue,
    pool: Pool,
    random: Random,
    evicted: Vec<Evicted>,
    /// The time at which the request on each slot ends, its function and its deadline.
    ends: [Option<(u64, FunctionId, Time)>; 4],
    now: u64,
    requests: u64,
    evictions: u64,
    late: u64,
}

impl Node {
    fn new(preset: Preset, least_work: bool) -> Self {
        let mut rules = preset.rules();
        if least_work {
            let (capacity, horizon) = (Span::from_secs(30), Span::from_secs(60));
            let admission = Admission::LeastWork { capacity, horizon };
            rules.queue.order = Order::RequiredRequests(admission);
        }
        let mut topology = Topology::new(&[25_000; 4]).unwrap();
        topology.share_host_path(SlotId(0), SlotId(1)).unwrap();
        topology.share_host_path(SlotId(2), SlotId(3)).unwrap();
        topology.link(SlotId(0), SlotId(2), 44_000).unwrap();
        topology.link(SlotId(1), SlotId(3), 22_000).unwrap();
        let mut node = Self {
            queue: Queue::new(rules.queue),
            pool: Pool::new(rules.slots, topology),
            random: Random(7),
            evicted: Vec::with_capacity(1_000),
            ends: [None; 4],
            now: 0,
            requests: 0,
            evictions: 0,
            late: 0,
        };
        for n in 0..FUNCTIONS {
            let objective = Span(80 * MS);
            let function = FunctionId(n);
            let percentile = Percentile::default();
            node.queue
                .add(Time(0), function, percentile, objective)
                .unwrap();
            let model = Model {
                bytes: [57, 80, 109, 21, 102, 178, 241, 1_340][n as usize % 8],
                heavy: n % 8 > 3,
                tight: false,
                writes: false,
                execution: Span(20 * MS),
                swapped: Span(36 * MS),
            };
            node.pool.add(function, model).unwrap();
            node.queue.set_estimate(Time(0), function, Span(20 * MS));
        }
        node
    }

    /// Makes all functions wait at once, in the low and in the high group, on time and late, so that the groups reach
    /// their largest sizes.
    fn warm(&mut self) {
        for in_time in [false, true] {
            for function in (0..FUNCTIONS).map(FunctionId) {
                for _ in 0..300 {
                    self.queue.completed(Time(self.now), function, in_time);
                }
            }
            // A step of the groups, then the time at which heads turn late, then that at which they are aged.
            self.now += 6_000 * MS;
            let mut tickets = Vec::new();
            for function in (0..FUNCTIONS).map(FunctionId) {
                let (now, due) = (Time(self.now), Time(self.now + 80 * MS));
                let ticket = self.queue.arrive(now, function, RequestId(0), due);
                tickets.push(ticket.unwrap());
            }
            for _ in 0..3 {
                self.now += 500 * MS;
                self.queue.next(Time(self.now));
            }
            for ticket in tickets {
                self.queue.cancel(Time(self.now), ticket);
            }
        }
    }

    /// Fills each slot with as many models as fit, light, heavy and both, so that the eviction orders reach their
    /// largest sizes.
    fn fill(&mut self) {
        for slot in (0..4).map(SlotId) {
            for models in [
                [0, 1, 2, 3, 3, 3, 3, 3],
                [4, 5, 6, 7, 7, 7, 7, 7],
                [3, 0, 1, 4, 2, 5, 6, 7],
            ] {
                let of = |model| {
                    (0..FUNCTIONS)
                        .filter(move |n| n % 8 == model)
                        .map(FunctionId)
                };
                for function in models.into_iter().flat_map(of) {
                    // A model that does not fit, or is present already, warms nothing.
                    self.pool.adopt(function, slot).ok();
                }
                for function in (0..FUNCTIONS).map(FunctionId) {
                    self.pool.unload(function, slot, &mut self.evicted);
                }
            }
        }
        self.evicted.clear();
    }

    /// Requests arrive slightly faster than four slots serve them for half of the time, and slightly slower for the
    /// other.
    fn work(&mut self, requests: u64) {
        for _ in 0..requests {
            let gap = if self.requests % 20_000 < 10_000 {
                12
            } else {
                8
            };
            self.now += self.random.below(gap * MS);
            self.requests += 1;
            self.end();
            let function = FunctionId(u32::try_from(self.random.index(480)).unwrap());
            let due = Time(self.now + 80 * MS);
            let request = RequestId(self.requests);
            let ticket = self
                .queue
                .arrive(Time(self.now), function, request, due)
                .unwrap();
            if self.queue.waiting(function) > 20 {
                self.queue.cancel(Time(self.now), ticket);
            }
            self.start();
        }
    }

    fn end(&mut self) {
        for slot in 0..4_u32 {
            if let Some((at, function, deadline)) = self.ends[slot as usize]
                && at <= self.now
            {
                self.ends[slot as usize] = None;
                self.pool.loaded(Time(at), SlotId(slot), &mut self.evicted);
                self.pool
                    .finished(Time(at), SlotId(slot), &mut self.evicted);
                let in_time = at <= deadline.0;
                self.late += u64::from(!in_time);
                self.queue.completed(Time(self.now), function, in_time);
                self.queue.release(Time(self.now), function);
            }
        }
    }

    fn start(&mut self) {
        while self.pool.free_slots() > 0
            && let Some((head, _)) = self.queue.next(Time(self.now))
        {
            let chance = self.random.next();
            let now = Time(self.now);
            match self
                .pool
                .schedule(now, head.function, chance, &mut self.evicted)
            {
                Decision::Run(run) => {
                    self.queue.take(now, head.ticket);
                    let takes = 20 + self.random.below(30);
                    let ends = (self.now + takes * MS, head.function, head.deadline);
                    self.ends[run.slot.0 as usize] = Some(ends);
                }
                Decision::Wait { .. } => {
                    self.queue.cancel(now, head.ticket);
                }
            }
            self.evictions += self.evicted.len() as u64;
            self.evicted.clear();
        }
    }
}

#[test]
fn a_warm_pool_allocates_nothing() {
    let presets = Preset::ALL.map(|preset| (preset, false));
    for (preset, least_work) in presets.into_iter().chain([(Preset::Adaptive, true)]) {
        let mut node = Node::new(preset, least_work);
        node.warm();
        node.fill();
        node.work(60_000);
        let before = (node.evictions, node.late);
        let counted = allocation_counter::measure(|| node.work(40_000));
        let evictions = node.evictions - before.0;
        println!(
            "{preset:?}: {evictions} evictions, {} late",
            node.late - before.1
        );
        let swaps = preset.rules().slots.swap == policy::pool::slots::Swap::On;
        assert_eq!(evictions > 1_000, swaps, "{preset:?}");
        assert_eq!(counted.count_total, 0, "{preset:?}: {counted:?}");
    }
}
