//! Cost of a request's decisions: arrive, next, schedule, take, loaded, finished, completed. Target: at most 1.5 µs in
//! all with 480 functions on four slots.

use divan::{Bencher, black_box};
use policy::pool::preset::Preset;
use policy::pool::queue::Queue;
use policy::pool::slots::{Decision, Model, Pool, Topology};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{RequestId, Span, Time};

fn main() {
    divan::main();
}

const MS: u64 = 1_000_000;

/// One request after another on a pool whose memory holds half of the models, so that most of them evict.
#[divan::bench(args = [480, 4_800, 48_000])]
fn a_request_that_swaps(bencher: Bencher<'_, '_>, functions: u32) {
    let mut node = Node::new(Preset::Adaptive, functions, 2);
    for _ in 0..4 * functions {
        node.request();
    }
    bencher.bench_local(|| node.request());
}

/// All models fit into memory.
#[divan::bench(args = [480, 4_800, 48_000])]
fn a_request_with_its_model_resident(bencher: Bencher<'_, '_>, functions: u32) {
    let mut node = Node::new(Preset::Adaptive, functions, 0);
    for _ in 0..4 * functions {
        node.request();
    }
    bencher.bench_local(|| node.request());
}

/// Half of the functions have a waiting request, some late, some of the low group.
#[divan::bench(args = [480, 4_800, 48_000], sample_size = 200)]
fn a_request_among_many_that_wait(bencher: Bencher<'_, '_>, functions: u32) {
    let mut node = Node::new(Preset::Adaptive, functions, 2);
    for _ in 0..4 * functions {
        node.request();
    }
    for _ in 0..functions / 2 {
        node.arrive();
    }
    bencher.bench_local(|| node.request());
}

#[divan::bench(args = Preset::ALL)]
fn a_request_at_480_functions(bencher: Bencher<'_, '_>, preset: Preset) {
    let mut node = Node::new(preset, 480, 2);
    for _ in 0..20_000 {
        node.request();
    }
    bencher.bench_local(|| node.request());
}

struct Node {
    queue: Queue,
    pool: Pool,
    evicted: Vec<policy::pool::slots::Evicted>,
    functions: u32,
    random: u64,
    requests: u64,
    now: u64,
    running: [Option<(FunctionId, Time)>; 4],
}

impl Node {
    /// Returns a node whose memory the models would fill `crowding` times; with 0 they fill a tenth at most.
    fn new(preset: Preset, functions: u32, crowding: u64) -> Self {
        let rules = preset.rules();
        let bytes = u64::from(functions) * 266;
        let memory = bytes.checked_div(4 * crowding).unwrap_or(bytes * 10);
        let mut topology = Topology::new(&[memory.max(2_000); 4]).expect("four slots");
        for (one, other) in [(0, 1), (2, 3)] {
            topology
                .share_host_path(SlotId(one), SlotId(other))
                .expect("slots");
            topology
                .link(SlotId(one), SlotId(3 - one), 44_000)
                .expect("slots");
        }
        let mut node = Self {
            queue: Queue::new(rules.queue),
            pool: Pool::new(rules.slots, topology),
            evicted: Vec::new(),
            functions,
            random: 1,
            requests: 0,
            now: 0,
            running: [None; 4],
        };
        for n in 0..functions {
            let function = FunctionId(n);
            let p = Percentile::default();
            let added = node.queue.add(Time(0), function, p, Span(80 * MS));
            added.expect("a new function");
            let model = Model {
                bytes: [57, 80, 109, 21, 102, 178, 241, 1_340][n as usize % 8],
                heavy: n % 8 > 3,
                tight: false,
                writes: false,
                execution: Span(20 * MS),
                swapped: Span(36 * MS),
            };
            node.pool.add(function, model).expect("a new function");
            node.queue.set_estimate(Time(0), function, Span(20 * MS));
        }
        node
    }

    fn chance(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(1);
        self.random >> 20
    }

    fn arrive(&mut self) {
        let id = u32::try_from(self.chance() % u64::from(self.functions)).expect("a function");
        self.requests += 1;
        let (now, due) = (Time(self.now), Time(self.now + 80 * MS));
        let request = RequestId(self.requests);
        let ticket = self.queue.arrive(now, FunctionId(id), request, due);
        black_box(ticket.expect("a known function"));
    }

    /// One request arrives, the request on the next slot ends, and the first in the queue starts there.
    fn request(&mut self) {
        self.now += 9 * MS;
        self.arrive();
        let now = Time(self.now);
        let slot = (self.requests % 4) as usize;
        if let Some((function, due)) = self.running[slot].take() {
            let id = SlotId((self.requests % 4) as u32);
            self.pool.loaded(now, id, &mut self.evicted);
            self.pool.finished(now, id, &mut self.evicted);
            self.queue.completed(now, function, now <= due);
            self.queue.release(now, function);
        }
        while let Some((head, _)) = self.queue.next(now) {
            let chance = self.chance();
            match self
                .pool
                .schedule(now, head.function, chance, &mut self.evicted)
            {
                Decision::Run(run) => {
                    self.queue.take(now, head.ticket);
                    self.running[run.slot.0 as usize] = Some((head.function, head.deadline));
                    break;
                }
                // It is bound to a busy slot, or there is no memory: it is cancelled.
                Decision::Wait { .. } => {
                    self.queue.cancel(now, head.ticket);
                }
            }
        }
        self.evicted.clear();
    }
}
