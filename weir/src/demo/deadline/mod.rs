//! The scenario `deadline`: one instance, a trace near its capacity, first with Knative's settings and then with Weir's.

mod page;
mod queue;
mod report;
mod text;

use std::process::ExitCode;

use anyhow::Context as _;

use self::report::{Report, Run};
use super::children::{Children, Settings};
use super::gpu::SoftGpu;
use super::progress::Progress;
use super::workload::Workload;
use super::{Arguments, best, disturbance, replay};
use crate::output::{Destination, print};
use crate::terminal::{Painter, width};

/// Runs the scenario. Returns exit code 1 if a request was not answered exactly once or, with `--strict`, if the result is
/// disturbed.
pub(super) async fn run(arguments: &Arguments, workload: &Workload) -> anyhow::Result<ExitCode> {
    let html = arguments.html.as_deref().map(Destination::new);
    let html = html.transpose()?;
    let gpu = SoftGpu::start().await?;
    let mut runs = Vec::new();
    let mut courses = Vec::new();
    for settings in Settings::both(workload.longest_objective()) {
        let name = settings.name();
        let mut children = Children::start(arguments.bind(), workload.cost, &gpu, settings).await?;
        let progress = Progress::new(name, workload, !arguments.json);
        let answers = replay::replay(children.address(), workload, &progress).await;
        progress.finish();
        children.check()?;
        let served = children.served().await?;
        children.stop().await?;
        runs.push(Run::new(name, workload, &answers, served));
        courses.push(queue::RunHistory::new(workload, &answers));
    }
    let device = gpu.device()?;
    drop(gpu);
    // Not on the runtime's thread, so that an interrupt is handled during the search.
    let (searched, seed) = (workload.clone(), arguments.seed());
    let best_found_hit_rate = tokio::task::spawn_blocking(move || best::hit_rate(&searched, seed))
        .await
        .context("the search for the best order panicked")?;
    let disturbed_why = disturbance::of_requests(&device, workload);
    let report = Report {
        scenario: "deadline",
        seed: arguments.seed(),
        load: arguments.load(),
        best_found_hit_rate,
        disturbed: disturbed_why.is_some(),
        disturbed_why,
        device,
        runs,
    };
    if let Some(html) = html {
        html.write(&page::html(&report, workload, &courses))?;
    }
    let text = if arguments.json {
        report.json()?
    } else {
        text::of(&report, workload, width(), Painter::stdout(arguments.color))
    };
    print(&text)?;
    let is_failed =
        !report.every_request_was_answered_once() || (report.disturbed && arguments.strict);
    Ok(ExitCode::from(u8::from(is_failed)))
}
