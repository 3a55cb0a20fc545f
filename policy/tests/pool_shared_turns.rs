//! A large model and small ones on a shared slot under constant demand, whose loads take longer than their requests: each is served again and again.

use policy::pool::leases::{Action, Class, Demand, Instance, InstanceId, Location};
use policy::pool::shared::SharedLeases;
use policy::pool::{FunctionId, Percentile, SlotId, queue};
use policy::{Span, Time};

const MS: u64 = 1_000_000;
/// Sizes of the models, of which the slot holds 100; each takes as many milliseconds to move.
const SIZES: [u64; 4] = [100, 50, 50, 50];
/// Time of a request, in milliseconds.
const TAKES: u64 = 5;

/// A pod whose queue always has one request, with times in milliseconds.
#[derive(Default, Clone, Copy)]
struct Pod {
    has_lease: bool,
    is_recalled: bool,
    has_stated: bool,
    /// When what runs ends.
    ends: Option<u64>,
    /// Whether its model leaves, and when the move ends.
    moves: Option<(bool, u64)>,
    since: u64,
    longest: u64,
}

/// Returns the longest wait of a request of each pod within two minutes, in milliseconds.
fn longest_waits(objective: u64) -> Vec<u64> {
    let mut leases = SharedLeases::new(queue::Settings::default(), false);
    leases.set_slot(SlotId(0), 100);
    leases.set_usable(SlotId(0), true);
    for (id, bytes) in (0..).zip(SIZES) {
        let about = Instance {
            function: FunctionId(id),
            slot: SlotId(0),
            percentile: Percentile::default(),
            objective: Span::from_millis(objective),
            class: Class::Tenant { namespace: 0 },
            may_leave: true,
        };
        assert!(leases.add(Time(0), InstanceId(id), &about).is_ok());
        leases.holds(Time(0), InstanceId(id), bytes);
        leases.located(Time(0), InstanceId(id), Location::Host);
        leases.connect(Time(0), InstanceId(id), false);
    }
    let mut pods = [Pod::default(); SIZES.len()];
    for t in 1..120_000 {
        let now = Time(t * MS);
        for (id, pod) in (0..).map(InstanceId).zip(&mut pods) {
            if let Some((leaves, _)) = pod.moves.take_if(|(_, until)| *until <= t) {
                if leaves {
                    leases.evicted(now, id, true);
                } else {
                    leases.restored(now, id, true);
                }
            }
            if pod.ends.take_if(|ends| *ends <= t).is_some() {
                pod.longest = pod.longest.max(t - pod.since);
                pod.since = t;
            }
            if pod.has_lease && pod.ends.is_none() {
                if pod.is_recalled {
                    (pod.has_lease, pod.is_recalled, pod.has_stated) = (false, false, false);
                    leases.idle(now, id, true);
                } else {
                    pod.ends = Some(t + TAKES);
                }
            }
            if !pod.has_lease && !std::mem::replace(&mut pod.has_stated, true) {
                let demand = Demand {
                    deadline: Time((pod.since + objective) * MS),
                    estimate: Span::from_millis(TAKES),
                    waiting: 1,
                    may_move: true,
                };
                leases.head(now, id, demand);
            }
        }
        let mut actions = Vec::new();
        leases.decide(now, &mut actions);
        for action in actions {
            match action {
                Action::Lease(InstanceId(id)) => pods[id as usize].has_lease = true,
                Action::Recall(InstanceId(id)) => pods[id as usize].is_recalled = true,
                Action::Evict {
                    instance: InstanceId(id),
                    ..
                } => pods[id as usize].moves = Some((true, t + SIZES[id as usize])),
                Action::Restore(InstanceId(id)) => {
                    pods[id as usize].moves = Some((false, t + SIZES[id as usize]));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let longest = pods.iter().map(|pod| pod.longest.max(120_000 - pod.since));
    longest.collect()
}

#[test]
fn no_model_waits_much_longer_than_ten_objectives() {
    for objective in [200, 1_000, 5_000] {
        let longest = longest_waits(objective);
        let most = longest.iter().max();
        assert!(
            most <= Some(&(10 * objective + 1_000)),
            "{longest:?} at {objective}"
        );
    }
}
