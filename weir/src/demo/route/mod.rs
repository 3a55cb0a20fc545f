//! The scenario `route`: one function with several instances behind activator-ext, and where its requests wait.
//!
//! Real programs on loopback; each instance has a software GPU of its own. Hit rates are those seen by a client. Computation
//! times are those reported by the model-servers; see [`measure`] for their evaluation.

mod activator;
mod fleet;
mod measure;
mod report;
mod setup;
mod speeds;

use std::process::ExitCode;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::gpu::SoftGpu;
use super::progress::Progress;
use super::replay::{self, Answer, Outcome};
use super::workload::Workload;
use super::{Arguments, disturbance};
use crate::output::print;
use fleet::Fleet;
use report::{Report, Run};
use setup::{KnativePrograms, Setup};
pub(super) use speeds::Speeds;

/// Runs the scenario. Returns exit code 1 if a request was not answered exactly once.
pub(super) async fn run(arguments: &Arguments, workload: &Workload) -> anyhow::Result<ExitCode> {
    let speeds = arguments.speeds();
    let speeds = speeds.get();
    fleet::addresses(arguments.bind(), speeds.len())?;
    let gpu = SoftGpu::start_gpus(u32::try_from(speeds.len())?).await?;
    let knative = KnativePrograms::from_environment();
    let mut setups = vec![Setup::Stock, Setup::QueueProxies, Setup::Weir];
    if knative.is_ok() {
        setups.push(Setup::Knative);
    }
    let mut runs = Vec::new();
    for setup in setups {
        let mut fleet = match (setup, &knative) {
            (Setup::Knative, Ok(programs)) => {
                Fleet::start_knative(programs, workload.cost, speeds, &gpu).await?
            }
            _ => {
                let slo = workload.longest_objective();
                Fleet::start(arguments.bind(), workload.cost, speeds, &gpu, setup, slo).await?
            }
        };
        let pids = fleet.model_pids();
        let progress = Progress::new(setup.name(), workload, !arguments.json);
        let answers = replay::replay(fleet.target(), workload, &progress).await;
        progress.finish();
        fleet.check()?;
        let served = fleet.served().await?;
        let reported = fleet.reported().await?;
        let courses = measure::courses(workload, &answers, &pids, (Instant::now(), monotonic_ns()));
        fleet.stop().await?;
        runs.push(Run::new(
            setup.name(),
            workload,
            &answers,
            served,
            &measure::measure(&courses, speeds),
            reported / true_concurrency(workload, &answers),
        ));
    }
    let device = gpu.device()?;
    drop(gpu);
    let disturbed = disturbance::of_requests(&device, workload);
    let is_disturbed = disturbed.is_some();
    let report = Report {
        scenario: "route",
        seed: arguments.seed(),
        load: arguments.load(),
        speeds: speeds.to_vec(),
        device,
        disturbed: is_disturbed,
        disturbed_why: disturbed,
        runs,
        skipped: knative.err(),
    };
    let text = if arguments.json {
        serde_json::to_string(&report)?
    } else {
        report.table(workload)
    };
    print(&text)?;
    let is_failed = !report.every_request_was_answered_once() || (is_disturbed && arguments.strict);
    Ok(ExitCode::from(u8::from(is_failed)))
}

/// Returns the concurrency that an activator has to report (contracts §9), in request-seconds: the time from sending to the last
/// byte, and the service times of requests shed before they reached a pod.
fn true_concurrency(workload: &Workload, answers: &[Answer]) -> f64 {
    let each = answers.iter().filter_map(|answer| {
        let exchange = answer.exchange?;
        let inside = exchange.ended.saturating_duration_since(exchange.sent);
        let is_shed = answer.outcome == Some(Outcome::Shed) && !exchange.is_from_pod;
        let shed = workload.requests[answer.request].service;
        Some(inside.as_secs_f64() + if is_shed { shed.as_secs_f64() } else { 0.0 })
    });
    each.sum()
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
