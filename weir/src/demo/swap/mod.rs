//! The scenario `swap`: more functions than the memory of the node's GPUs holds, each with an objective. First as each function would be hosted
//! alone in the GPUs' memory, first come until it is full; then under leases of the agent, by which models move as requests come.
//!
//! Real programs: a queue-proxy and a model-server for each instance, the agent and the preload library as on a node, and software GPUs behind PCIe
//! switches (Torpor, Fig. 5). Both runs have the same arrivals.

mod load;
mod measure;
mod node;
mod plan;
mod report;

use std::process::ExitCode;

use clap::Args;
use policy::pool::leases::Rule;

use crate::output::print;
use node::Station;
use plan::Plan;

/// Options of the scenario.
#[derive(Debug, Args)]
pub(crate) struct SwapOptions {
    /// With --scenario swap: number of functions (default 128).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    functions: Option<u32>,
    /// Number of instances of each function, on GPUs of different switches (default 2, or 1 with one GPU).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    instances: Option<u32>,
    /// Number of GPUs (default 4).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    gpus: Option<u32>,
    /// Requests a second, of all functions together (default 63).
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: Option<u32>,
    /// Memory of each GPU for models at a time, such as 7GiB (the default).
    #[arg(long, value_name = "SIZE")]
    models: Option<String>,
    /// Also run with other rules of leases: fifo, requests in order of arrival; random, any free GPU; lru, models leave by least recent use alone;
    /// no-ahead, nothing is loaded ahead.
    #[arg(long)]
    ablate: bool,
}

/// Rules of leases beside the default one, with --ablate (M2.21).
const ABLATIONS: [Rule; 4] = [
    Rule::ArrivalOrder,
    Rule::RandomPlacement,
    Rule::LeastRecentlyUsed,
    Rule::NothingAhead,
];

/// Form of the output, and what all scenarios have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) is_json: bool,
    /// Whether a disturbed result ends with exit code 1.
    pub(crate) is_strict: bool,
    pub(crate) seconds: Option<f64>,
    /// Factor of times.
    pub(crate) slow: u32,
    pub(crate) seed: u64,
}

impl SwapOptions {
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.functions.is_some(), "--functions"),
            (self.instances.is_some(), "--instances"),
            (self.gpus.is_some(), "--gpus"),
            (self.rate.is_some(), "--rate"),
            (self.models.is_some(), "--models"),
            (self.ablate, "--ablate"),
        ];
        let given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, name)| name)
    }
}

/// Runs the scenario. Returns exit code 1 if a request under leases was lost or its answer wrong, if the result is not valid, or with `--strict` for a
/// disturbed one.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) async fn run(options: &SwapOptions, output: &Output) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(options, output)?;
    let mut runs = vec![Station::stock(&plan).await?.measured(&plan).await?];
    let ablations = ABLATIONS.into_iter().filter(|_| options.ablate);
    for rule in std::iter::once(Rule::Weir).chain(ablations) {
        let station = Station::leased(&plan, rule).await?;
        runs.push(station.measured(&plan).await?);
    }
    let report = report::Report::new(&plan, &runs);
    let text = if output.is_json {
        serde_json::to_string(&report)?
    } else {
        report::table(&report)
    };
    print(&text)?;
    let is_bad = !report.is_right() || !report.valid || report.is_disturbed() && output.is_strict;
    Ok(if is_bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
