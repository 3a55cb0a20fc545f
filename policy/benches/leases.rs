//! Cost of the decisions from a head until its lease and back, with idle holders on the other slots. Target: at most 2 µs with eight slots, 4 µs with 64.

use divan::{Bencher, black_box};
use policy::pool::leases::{Action, Class, Demand, Instance, InstanceId, Leases, Settings};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{Span, Time};

fn main() {
    divan::main();
}

/// Instances of each slot, whose models all fit there.
const INSTANCES: u32 = 4;

/// The head of an instance takes the slot over from another which has nothing to do, as with one message after another from their queues.
#[divan::bench(args = [1, 8, 64])]
fn a_head_that_takes_a_slot_over(bencher: Bencher<'_, '_>, slots: u32) {
    let mut node = Node::new(slots);
    for _ in 0..INSTANCES * slots {
        node.request();
    }
    bencher.bench_local(|| node.request());
}

/// Nothing was reported since the decision before.
#[divan::bench(args = [1, 8, 64])]
fn a_decision_without_news(bencher: Bencher<'_, '_>, slots: u32) {
    let mut node = Node::new(slots);
    for _ in 0..INSTANCES * slots {
        node.request();
    }
    bencher.bench_local(|| {
        node.decide();
        assert!(node.actions.is_empty(), "nothing has changed");
    });
}

struct Node {
    leases: Leases,
    actions: Vec<Action>,
    now: u64,
    next: u32,
    instances: u32,
}

impl Node {
    fn new(slots: u32) -> Self {
        let mut leases = Leases::new(Settings::default());
        for slot in (0..slots).map(SlotId) {
            leases.set_slot(slot, 80 << 30);
            leases.set_usable(slot, true);
        }
        let instances = INSTANCES * slots;
        for id in 0..instances {
            let instance = Instance {
                function: FunctionId(id),
                slot: SlotId(id % slots),
                percentile: Percentile::default(),
                objective: Span::from_millis(80),
                class: Class::Tenant { namespace: 1 },
                may_leave: true,
            };
            let id = InstanceId(id);
            leases.add(Time(0), id, &instance).expect("a new instance");
            leases.connect(Time(0), id, None);
        }
        Self {
            leases,
            actions: Vec::new(),
            now: 0,
            next: 0,
            instances,
        }
    }

    fn decide(&mut self) {
        self.now += 1_000;
        self.leases.decide(Time(self.now), &mut self.actions);
    }

    /// Serves one request of the next instance, and decides after each report.
    fn request(&mut self) {
        self.next = (self.next + 1) % self.instances;
        let own = InstanceId(self.next);
        let demand = Demand {
            deadline: Time(self.now + 80_000_000),
            estimate: Span::from_millis(5),
            waiting: 1,
            may_move: true,
        };
        self.leases.head(Time(self.now), own, demand);
        loop {
            self.decide();
            if self.actions.is_empty() {
                break;
            }
            let now = Time(self.now);
            for action in self.actions.drain(..) {
                match action {
                    Action::Recall(id) => self.leases.idle(now, id, true),
                    Action::Close(id) => self.leases.closed(now, id),
                    other => _ = black_box(other),
                }
            }
        }
        self.leases.idle(Time(self.now), own, false);
        self.decide();
    }
}
