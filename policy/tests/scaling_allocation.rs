//! A warm scaler allocates nothing per decision, as counted by this test's own allocator.

use policy::footprint::Footprint;
use policy::rectangles::{FunctionId, InstanceId};
use policy::scaling::profile::{
    DriverId, GpuModelId, ImageId, Latency, Origin, Points, Row, Subject,
};
use policy::scaling::{Action, Load, LoadSettings, Rate, Scaler, Settings};
use policy::tokens::Share;
use policy::{Span, Time};
use testing::Random;

fn points() -> Points {
    let rows: Vec<_> = (1..8)
        .map(|n| Row {
            subject: Subject {
                function: FunctionId(0),
                gpu: GpuModelId(0),
                driver: DriverId(0),
                batch: 1,
                image: ImageId(0),
            },
            sm: n * 700,
            quota: Share::from_percent(10 + n * 5),
            throughput: Rate::per_second(u64::from(n) * 9),
            latency: Latency::default(),
            memory: Footprint::unshared(1),
            origin: Origin::Measured,
        })
        .collect();
    Points::select(&rows, None, 1).expect("all fit")
}

struct Function {
    scaler: Scaler,
    load: Load,
    actions: Vec<Action>,
    now: Time,
    next: u32,
}

/// Simulates an hour of rising and falling load. Returns the numbers of pods added and removed.
fn work(function: &mut Function, random: &mut Random) -> (u32, u32) {
    let (mut added, mut removed) = (0, 0);
    for second in 0..3_600 {
        function.now = function.now.after(Span::from_secs(1));
        let most = if second / 200 % 2 == 0 { 300 } else { 30 };
        function.load.arrive(u64::from(random.below_u32(most)));
        let load = function.load.predict(function.now, 0);
        function.actions.clear();
        function
            .scaler
            .decide(function.now, load, &mut function.actions);
        for at in 0..function.actions.len() {
            match function.actions[at] {
                Action::Add { point, count, .. } => {
                    for _ in 0..count {
                        let instance = InstanceId(function.next);
                        function.next += 1;
                        added += 1;
                        function
                            .scaler
                            .add(instance, point, function.now)
                            .expect("a new pod");
                        function.scaler.ready(instance);
                    }
                }
                Action::Remove { instance, .. } => {
                    removed += 1;
                    function.scaler.gone(instance);
                }
                Action::Shortfall { by } => assert!(by == Rate::ZERO, "the bound is far"),
            }
        }
    }
    (added, removed)
}

#[test]
fn a_warm_scaler_allocates_nothing() {
    for settings in [Settings::default(), Settings::paper()] {
        let mut function = Function {
            scaler: Scaler::new(settings, points()),
            load: Load::new(Time::ZERO, LoadSettings::default()),
            actions: Vec::with_capacity(64),
            now: Time::ZERO,
            next: 0,
        };
        work(&mut function, &mut Random(5));
        let mut random = Random(5);
        let mut done = (0, 0);
        let counted = allocation_counter::measure(|| done = work(&mut function, &mut random));
        assert!(done.0 > 20 && done.1 > 20, "{done:?}");
        assert_eq!(counted.count_total, 0, "{settings:?}: {counted:?}");
    }
}
