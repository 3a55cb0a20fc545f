//! The scaler compared with sums that are recomputed at every step, over random profiles, loads and pods.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use std::cmp::Ordering;

use policy::Time;
use policy::footprint::Footprint;
use policy::rectangles::{
    FunctionId, InstanceId, PlaceReason, Rectangles, Refusal, Settings as Packing, SlotId,
};
use policy::scaling::profile::{
    DriverId, GpuModelId, ImageId, Latency, Origin, Point, Points, Row, Subject,
};
use policy::scaling::{Action, AddReason, Rate, Scaler, Settings, place};
use policy::tokens::Share;
use testing::Random;

const SECOND: u64 = 1_000_000_000;

fn row(sm: u32, quota_percent: u32, throughput: Rate) -> Row {
    Row {
        subject: Subject {
            function: FunctionId(0),
            gpu: GpuModelId(0),
            driver: DriverId(0),
            batch: 1,
            image: ImageId(0),
        },
        sm: sm * 100,
        quota: Share::from_percent(quota_percent),
        throughput,
        latency: Latency::default(),
        memory: Footprint::unshared(1),
        origin: Origin::Measured,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Starting(u64),
    Ready,
    Leaving,
}

struct RunningPod {
    instance: InstanceId,
    point: Point,
    state: State,
    /// Number in the order of creation: of equally efficient pods the latest is removed first.
    number: u32,
}

/// The inputs of a decision.
struct DecisionInput {
    at: u64,
    load: u64,
    /// The surplus, if it is more than negligible.
    surplus: Option<u64>,
    removed: bool,
}

fn sum(pods: &[RunningPod], counts: impl Fn(State) -> bool) -> u64 {
    (pods.iter())
        .filter(|known| counts(known.state))
        .map(|known| known.point.throughput.0)
        .sum()
}

#[derive(Default, Debug)]
struct Counts {
    efficient: u32,
    rest: u32,
    removed: u32,
    capped: u32,
}

fn run(seed: u64, pods_max: u32, pods_min: u32) -> Counts {
    println!("seed {seed}, {pods_min} to {pods_max} pods");
    let mut random = Random(seed);
    let mut counts = Counts::default();
    for _ in 0..30 {
        let rows: Vec<_> = (0..1 + random.below_u32(12))
            .map(|n| {
                let throughput = Rate(u64::from(1 + random.below_u32(80)) * 500_000);
                row(
                    1 + n * 3 + random.below_u32(3),
                    1 + random.below_u32(100),
                    throughput,
                )
            })
            .collect();
        let points = Points::select(&rows, None, 1).unwrap();
        let efficient = points.efficient().throughput.0;
        let negligible = efficient / 50;
        let settings = Settings {
            pods_max,
            pods_min,
            ..Settings::default()
        };
        let mut scaler = Scaler::new(settings, points.clone());
        let mut pods: Vec<RunningPod> = Vec::new();
        let mut seen: Vec<DecisionInput> = Vec::new();
        let (mut now, mut load, mut next) = (1_000 * SECOND, 0, 0);
        let mut actions = Vec::new();
        for _ in 0..400 {
            now += u64::from(random.below_u32(5_000)) * 1_000_000;
            match random.below_u32(20) {
                0 => load = u64::from(random.below_u32(400)) * 1_000_000,
                1..=3 => load = load * u64::from(80 + random.below_u32(40)) / 100,
                _ => {}
            }
            // Pods become ready, some late, and some end by themselves.
            for known in &mut pods {
                if let State::Starting(ready_at) = known.state
                    && now >= ready_at
                    && random.below_u32(8) > 0
                {
                    known.state = State::Ready;
                    scaler.ready(known.instance);
                }
            }
            pods.retain(|known| {
                let goes = random.below_u32(if known.state == State::Leaving {
                    3
                } else {
                    300
                }) == 0;
                if goes {
                    scaler.gone(known.instance);
                }
                !goes
            });
            let ready = sum(&pods, |state| state == State::Ready);
            let starting = sum(
                &pods,
                |state| matches!(state, State::Starting(at) if now <= at + 30 * SECOND),
            );
            assert_eq!(scaler.capacity(Time(now)), (Rate(ready), Rate(starting)));
            actions.clear();
            let wake = scaler.decide(Time(now), Rate(load), &mut actions);
            assert!(wake > Time(now));

            let gap = load.saturating_sub(ready + starting);
            let (mut added, mut short, mut removed) = (0, None, Vec::new());
            let mut new = Vec::new();
            for action in &actions {
                match *action {
                    Action::Add {
                        point,
                        count,
                        reason,
                    } => {
                        assert!(count > 0);
                        match reason {
                            AddReason::Efficient => {
                                counts.efficient += count;
                                assert_eq!(point, *points.efficient());
                                let room = u64::from(pods_max) - pods.len() as u64;
                                assert_eq!(u64::from(count), (gap / efficient).min(room));
                            }
                            AddReason::Rest => {
                                counts.rest += 1;
                                let rest = gap - added;
                                assert!(rest > negligible && rest < efficient);
                                let least = (points.all().iter())
                                    .map(|point| point.throughput.0)
                                    .filter(|&throughput| throughput >= rest)
                                    .min();
                                assert_eq!(Some(point.throughput.0), least);
                            }
                        }
                        added += point.throughput.0 * u64::from(count);
                        new.extend((0..count).map(|_| point));
                    }
                    Action::Remove { instance, .. } => removed.push(instance),
                    Action::Shortfall { by } => short = Some(by.0),
                }
            }
            if gap > negligible {
                assert!(removed.is_empty());
                // The remaining gap is negligible, or reported.
                let left = gap.saturating_sub(added);
                match short {
                    Some(by) => {
                        counts.capped += 1;
                        assert_eq!(by, left);
                        assert_eq!(pods.len() + new.len(), pods_max as usize);
                    }
                    None => assert!(left <= negligible),
                }
                // No pod is superfluous: without the last one the load is not served.
                let last = new.last().map_or(0, |point| point.throughput.0);
                assert!(new.is_empty() || added - last < gap);
            } else {
                assert_eq!((added, short), (0, None));
            }

            let surplus = Some(ready.saturating_sub(load)).filter(|&much| much > negligible);
            seen.push(DecisionInput {
                at: now,
                load,
                surplus: surplus.filter(|_| gap <= negligible),
                removed: !removed.is_empty(),
            });
            for &instance in &removed {
                let known = pods
                    .iter_mut()
                    .find(|known| known.instance == instance)
                    .unwrap();
                assert_eq!(known.state, State::Ready);
                known.state = State::Leaving;
            }
            let stay = |known: &&RunningPod| known.state == State::Ready;
            if !removed.is_empty() {
                counts.removed += u32::try_from(removed.len()).unwrap();
                // For half a minute, and at the decision before, there was a surplus; the remaining pods could have
                // served every load.
                let from = seen.partition_point(|seen| seen.at + 30 * SECOND <= now);
                let past = &seen[from.checked_sub(1).unwrap()..];
                let left = sum(&pods, |state| state == State::Ready);
                assert!(
                    past.iter()
                        .all(|seen| seen.surplus.is_some() && seen.load <= left)
                );
                assert!(pods.iter().filter(stay).count() >= pods_min.max(1) as usize);
                for gone in pods
                    .iter()
                    .filter(|known| removed.contains(&known.instance))
                {
                    for stays in pods.iter().filter(stay) {
                        match gone.point.compare_efficiency(&stays.point) {
                            Ordering::Less => {}
                            Ordering::Equal => assert!(gone.number > stays.number),
                            Ordering::Greater => panic!("the more efficient went"),
                        }
                    }
                }
            }
            // Pods that were superfluous for more than a minute are removed.
            let past = &seen[seen.partition_point(|seen| seen.at + 70 * SECOND < now)..];
            let idle = past
                .iter()
                .map(|seen| seen.surplus.unwrap_or(0))
                .min()
                .unwrap_or(0);
            let first = (pods.iter().filter(stay)).min_by(|one, other| {
                one.point
                    .compare_efficiency(&other.point)
                    .then(other.number.cmp(&one.number))
            });
            if let Some(first) = first
                && pods.iter().filter(stay).count() > pods_min.max(1) as usize
                && past.len() > 1
                && past[0].at + 65 * SECOND < now
                && past.iter().all(|seen| !seen.removed)
            {
                let most = past.iter().map(|seen| seen.load).max().unwrap();
                let ready = sum(&pods, |state| state == State::Ready);
                let could = first.point.throughput.0 <= ready.saturating_sub(most);
                assert!(!(could && idle > 0), "{idle} idle, no pod was removed");
            }
            for point in new {
                let instance = InstanceId(next);
                let ready_at = now + u64::from(random.below_u32(20)) * SECOND;
                scaler.add(instance, point, Time(ready_at)).unwrap();
                assert!(scaler.add(instance, point, Time(ready_at)).is_err());
                pods.push(RunningPod {
                    instance,
                    point,
                    state: State::Starting(ready_at),
                    number: next,
                });
                next += 1;
            }
            assert!(pods.len() <= pods_max as usize);
        }
    }
    println!("{counts:?}");
    counts
}

#[test]
fn load_is_served_and_no_needed_pod_is_removed() {
    for (seed, pods_max, pods_min) in [(21, 1_000, 1), (22, 12, 0), (23, 1_000, 4)] {
        let counts = run(seed, pods_max, pods_min);
        assert!(counts.rest > 50 && counts.removed > 50 && counts.efficient > 50);
        assert_eq!(counts.capped > 0, pods_max == 12);
    }
}

fn two() -> Points {
    let rows = [
        row(12, 40, Rate::per_second(20)),
        row(12, 10, Rate(4_000_000)),
    ];
    Points::select(&rows, None, 1).unwrap()
}

/// Adds the requested pods. Returns their throughputs.
fn grow(scaler: &mut Scaler, now: u64, load: Rate, next: &mut u32) -> Vec<u64> {
    let mut actions = Vec::new();
    scaler.decide(Time(now), load, &mut actions);
    let mut added = Vec::new();
    for action in actions {
        if let Action::Add { point, count, .. } = action {
            for _ in 0..count {
                scaler.add(InstanceId(*next), point, Time(now)).unwrap();
                scaler.ready(InstanceId(*next));
                *next += 1;
                added.push(point.throughput.0 / 1_000_000);
            }
        }
    }
    added
}

#[test]
fn a_gap_of_zero_adds_a_pod_only_as_printed() {
    let mut next = 0;
    let mut weir = Scaler::new(Settings::default(), two());
    assert_eq!(
        grow(&mut weir, 0, Rate::per_second(40), &mut next),
        [20, 20]
    );
    assert_eq!(grow(&mut weir, 0, Rate::per_second(40), &mut next), []);
    assert_eq!(grow(&mut weir, 0, Rate(40_300_000), &mut next), []);
    assert_eq!(grow(&mut weir, 0, Rate(40_500_000), &mut next), [4]);
    let mut paper = Scaler::new(Settings::paper(), two());
    // A rest of 40 is zero, and gets a pod all the same.
    assert_eq!(
        grow(&mut paper, 0, Rate::per_second(40), &mut next),
        [20, 20, 4]
    );
    assert_eq!(grow(&mut paper, 0, Rate::per_second(44), &mut next), [4]);
    // A rest equal to a pod's throughput gets the next larger one.
    assert_eq!(grow(&mut paper, 0, Rate::per_second(52), &mut next), [20]);
}

#[test]
fn as_printed_pods_are_removed_at_once_and_the_listing_ends() {
    let mut next = 0;
    let mut paper = Scaler::new(Settings::paper(), two());
    grow(&mut paper, 0, Rate::per_second(40), &mut next);
    let mut actions = Vec::new();
    // With a surplus of 4 the least efficient is removed. With 3 it would be needed; there the printed listing never
    // ends.
    paper.decide(Time(1), Rate::per_second(41), &mut actions);
    assert_eq!(actions, []);
    paper.decide(Time(2), Rate::per_second(40), &mut actions);
    assert!(matches!(
        actions[..],
        [Action::Remove {
            instance: InstanceId(2),
            ..
        }]
    ));
    actions.clear();
    paper.decide(Time(3), Rate::ZERO, &mut actions);
    assert_eq!(actions.len(), 2);
}

#[test]
fn pods_are_removed_after_half_a_minute_and_never_the_last() {
    let mut next = 0;
    let mut scaler = Scaler::new(Settings::default(), two());
    grow(&mut scaler, 0, Rate::per_second(40), &mut next);
    let mut removed = |seconds: u64, load| {
        let mut actions = Vec::new();
        scaler.decide(Time(seconds * SECOND), Rate::per_second(load), &mut actions);
        actions.len()
    };
    assert_eq!(removed(100, 10), 0);
    assert_eq!(removed(129, 10), 0);
    // A moment of need restarts the half minute.
    assert_eq!(removed(130, 40), 0);
    assert_eq!(removed(131, 10), 0);
    assert_eq!(removed(160, 30), 0);
    // At 160 s it would have been needed.
    assert_eq!(removed(161, 10), 0);
    assert_eq!(removed(191, 10), 1);
    assert_eq!(removed(300, 0), 0);
    assert_eq!(removed(400, 0), 0);
}

#[test]
fn an_overdue_pod_is_started_again_and_no_pod_is_removed_for_a_starting_one() {
    let mut scaler = Scaler::new(Settings::default(), two());
    let point = *scaler.points().efficient();
    scaler.add(InstanceId(0), point, Time(5 * SECOND)).unwrap();
    let mut actions = Vec::new();
    let load = Rate::per_second(20);
    let wake = scaler.decide(Time(0), load, &mut actions);
    assert_eq!((actions.len(), wake), (0, Time(35 * SECOND + 1)));
    scaler.decide(wake, load, &mut actions);
    assert!(matches!(actions[..], [Action::Add { count: 1, .. }]));
    actions.clear();
    // One is ready, the other starts, and the load needs one.
    scaler.add(InstanceId(1), point, Time(90 * SECOND)).unwrap();
    scaler.ready(InstanceId(0));
    for second in 40..85 {
        scaler.decide(Time(second * SECOND), load, &mut actions);
    }
    assert_eq!(actions, []);
    assert_eq!(scaler.capacity(Time(85 * SECOND)), (load, load));
}

#[test]
fn if_the_wanted_shape_fits_nowhere_the_most_efficient_fitting_one_is_placed() {
    let rows = [
        row(50, 80, Rate::per_second(400)),
        row(50, 40, Rate::per_second(100)),
        row(24, 40, Rate::per_second(60)),
        row(12, 20, Rate::per_second(10)),
    ];
    let points = Points::select(&rows, None, 1).unwrap();
    let wanted = *points.efficient();
    assert_eq!(wanted.throughput, Rate::per_second(400));
    let mut packer = Rectangles::new(Packing::default()).unwrap();
    packer.add_slot(SlotId(0), 1_000).unwrap();
    let mut served = Vec::new();
    let refused = loop {
        let instance = InstanceId(u32::try_from(served.len()).unwrap());
        match place(&mut packer, instance, FunctionId(0), &wanted, &points) {
            Ok((point, placement)) => {
                assert_eq!(placement.reason, PlaceReason::BestArea);
                served.push(point.throughput.0 / 1_000_000);
            }
            Err(refused) => break refused,
        }
    };
    // Two pods above each other; a column of 10 % of the window is left, into which nothing fits.
    assert_eq!(served, [400, 400]);
    assert_eq!(refused, Refusal::NoArea);
    packer.remove(InstanceId(1)).unwrap();
    packer
        .place(InstanceId(7), &row_pod(12, 90))
        .expect("part of what is free");
    // 38 % of the SMs are left: 60 for 24 × 40 before 10 for 12 × 20.
    let next = |packer: &mut Rectangles, instance| {
        let placed = place(
            packer,
            InstanceId(instance),
            FunctionId(0),
            &wanted,
            &points,
        );
        placed.map(|(point, _)| point.throughput.0 / 1_000_000)
    };
    assert_eq!(next(&mut packer, 8), Ok(60));
    assert_eq!(next(&mut packer, 9), Ok(60));
    assert_eq!(next(&mut packer, 10), Ok(10));
    assert_eq!(next(&mut packer, 8), Err(Refusal::InstanceTaken));
}

fn row_pod(sm: u32, quota: u32) -> policy::rectangles::Pod {
    Point::from(&row(sm, quota, Rate(1))).pod(FunctionId(1))
}

/// Decisions and placements together serve a load that needs smaller shapes than the best one.
#[test]
fn gaps_close_over_decisions_with_smaller_shapes() {
    let rows = [
        row(60, 60, Rate::per_second(100)),
        row(20, 30, Rate::per_second(12)),
    ];
    let mut scaler = Scaler::new(Settings::default(), Points::select(&rows, None, 1).unwrap());
    let mut packer = Rectangles::new(Packing::default()).unwrap();
    for slot in 0..2 {
        packer.add_slot(SlotId(slot), 1_000).unwrap();
    }
    let (mut actions, mut next, mut rounds) = (Vec::new(), 0, 0);
    let load = Rate::per_second(260);
    loop {
        actions.clear();
        scaler.decide(Time(0), load, &mut actions);
        if actions.is_empty() {
            break;
        }
        rounds += 1;
        for action in &actions {
            let Action::Add { point, count, .. } = action else {
                panic!("{action:?}");
            };
            for _ in 0..*count {
                let points = scaler.points().clone();
                let instance = InstanceId(next);
                let (point, _) =
                    place(&mut packer, instance, FunctionId(0), point, &points).unwrap();
                scaler.add(instance, point, Time(0)).unwrap();
                next += 1;
            }
        }
        assert!(rounds < 20);
    }
    let (_, starting) = scaler.capacity(Time(0));
    assert!(rounds > 1 && starting >= load);
    assert!(starting.less(load) <= Rate::per_second(12), "{starting:?}");
}
