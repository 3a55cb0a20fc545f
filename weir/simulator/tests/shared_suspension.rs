//! A suspended pod costs its neighbour nothing, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use device::law::Law;
use policy::tokens::{Quota, SM_WHOLE, Share};
use policy::{Span, Time};
use simulator::random::Streams;
use simulator::shared::gpu::Suspension;
use simulator::shared::models::{GateTimes, GpuParts, Model};
use simulator::shared::{CountedSpan, Loop, Models, Noise, Settings, loops};

const SECONDS: u64 = 20;

/// Returns the shares of time of a pod which is periodically suspended, with a request of 30 %, and of its neighbour, with 70 %.
fn shares(suspension: Option<Suspension>, launch_us: f64, message_us: f64) -> [f64; 2] {
    let models = Models {
        models: vec![Model {
            name: "kernels".to_owned(),
            // 64 kernels of 100 µs.
            requests_per_s: 1e6 / 6_400.0,
            law: Law::Linear,
            interference: 0.0,
            launch_us,
        }],
        footprints: Vec::new(),
        gpu: GpuParts {
            memory_mb: 80_000,
            cold_start_s: 0.0,
            cold_start_s_per_gb: 0.0,
        },
        gate: GateTimes {
            message_us,
            ask_us: 50.0,
            in_flight_us: 2_000.0,
            in_flight_alone_us: Some(100_000.0),
        },
    };
    let settings = Settings {
        noise: Noise::OFF,
        ..Settings::default()
    };
    let pod = |request, suspension| Loop {
        model: 0,
        sm: SM_WHOLE,
        quota: Quota::new(Share::from_percent(request), Share::WHOLE).unwrap(),
        gpu: 0,
        in_flight: 2,
        pause: Span::ZERO,
        suspension,
    };
    let from = Time::ZERO.after(Span::from_secs(2));
    let span = CountedSpan {
        from,
        to: from.after(Span::from_secs(SECONDS)),
    };
    let pods = [pod(30, suspension), pod(70, None)];
    let streams = Streams::new("stands", 1);
    let outcome = loops(&models, &settings, &pods, span, &streams).unwrap();
    [0, 1].map(|at: usize| outcome.pods[at].share(outcome.counted))
}

#[test]
fn a_suspended_pod_costs_its_neighbour_nothing() {
    let mut missed = Vec::new();
    for message_us in [50.0, 125.0, 200.0] {
        let [_, undisturbed] = shares(None, 100.0, message_us);
        for (runs, suspended) in [
            (40, 60),
            (80, 20),
            (300, 400),
            (10, 90),
            (7, 13),
            (37, 411),
            (43, 59),
        ] {
            for is_observable in [true, false] {
                let suspension = Suspension {
                    runs: Span::from_millis(runs),
                    suspended: Span::from_millis(suspended),
                    is_observable,
                };
                let [own, neighbour] = shares(Some(suspension), 100.0, message_us);
                let idle = 1.0 - own - neighbour;
                let line = format!(
                    "{message_us} µs, {runs} of {} ms, observable {is_observable}: {:.2} : {:.2} %, undisturbed {:.2}, idle {:.2} %",
                    runs + suspended,
                    own * 100.0,
                    neighbour * 100.0,
                    undisturbed * 100.0,
                    idle * 100.0
                );
                println!("{line}");
                if neighbour < 0.98 * undisturbed || idle > 0.03 {
                    missed.push(line);
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
