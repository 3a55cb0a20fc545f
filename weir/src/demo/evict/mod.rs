//! The scenario `evict`: models that leave their GPU and return, measured by the device's ledger, and random cycles of both under load.
//!
//! Real programs under the real preload library, the agent as it runs on a node, a software GPU. Each model is measured alone on its GPU: the
//! first eviction, of which all is copied; one of which nothing has changed; a restore for a request; and, in a second process, the first eviction
//! after the process has copied ahead.

mod beside;
mod cycles;
mod measure;
mod order;
mod report;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use device::part::Part;
use softgpu::ledger::{Ledger, Selection};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::agent::{Environment, NodeAgent};
use super::gpu::{Device, SoftGpu};
use crate::output::print;
use cycles::Cycles;
use measure::{Stretch, Track};
use order::Moved;
use server::{Answer, ModelPlan, Server, ServerPlan, infer};

/// Number of random cycles, unless stated.
const CYCLES: u32 = 200;
/// Largest number of random cycles.
const CYCLES_MAX: u32 = 100_000;
/// Time without a launch after which a process copies ahead.
const SEAL_AFTER: &str = "500ms";
/// Refusal of an eviction for want of host memory, and the longest time until a process has it.
const NO_MEMORY: &str = "no-memory";
const HOST_MEMORY_MAX: Duration = Duration::from_secs(60);
/// Time for which a model is away before a request brings it back: its copy is searched for addresses meanwhile.
const AWAY: Duration = Duration::from_millis(300);
/// State that a request of the random cycles changes.
const CHANGE: &str = "8MiB";
/// Annotations of a pod: two on a slot compute in turns.
const ANNOTATIONS: &str = "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"100\"\n\
                           weir.dev/quota-request=\"0.5\"\nweir.dev/quota-limit=\"1\"\n";
/// Tables of the agent's configuration. Quotas of pods add up to more than the planner allows by default.
const SLOTS: &str = "[slots]\nplan = 400\n";
/// Lines of the table `[node]`: the copies of the largest model, and twice that while its second process starts.
const NODE: &str = "host-memory = \"8Gi\"\npinned-memory = \"8Gi\"\n";
/// Weights of a model whose size is not stated.
const WEIGHTS: &str = "16GiB";
/// Factor of times where the calls of the driver are to take what the part states: unslowed, the software GPU takes longer for them.
const SLOWED: u32 = 4;
/// GPU of a model for which none is stated.
const PART: &str = "H200";

/// Options of the scenario.
#[derive(Debug, Args)]
pub(crate) struct EvictOptions {
    /// With --scenario evict: one GPU of this part, such as H200, with one model; without it, five models on three parts, and one beside others behind a PCIe switch.
    #[arg(long, value_name = "NAME")]
    part: Option<String>,
    /// Size of that model's weights, such as 16GiB.
    #[arg(long, value_name = "SIZE")]
    weights: Option<String>,
    /// Number of random cycles of eviction and return under load.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(CYCLES_MAX)))]
    cycles: Option<u32>,
}

/// Form of the output, and seed of the cycles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) is_json: bool,
    /// Whether a disturbed result ends with exit code 1.
    pub(crate) is_strict: bool,
    /// Factor of the software GPU's times, if one is stated.
    pub(crate) slow: Option<u32>,
    pub(crate) seed: u64,
}

/// A GPU and the models which are measured on it, one after the other.
#[derive(Debug)]
struct Station {
    part: Part,
    /// Factor of times.
    time: u32,
    models: Vec<ModelPlan>,
    /// Number of random cycles of its models together.
    cycles: u32,
}

/// Figures of one model. Times are unscaled, in ns; sizes scaled, in bytes.
#[derive(Debug)]
struct ModelRun {
    name: String,
    bytes: u64,
    handles: usize,
    /// The first eviction, before anything was copied ahead.
    evict_all_ns: u64,
    evict_all_copied: u64,
    /// An eviction after a request which changed nothing.
    evict_clean_ns: u64,
    evict_clean_copied: u64,
    /// The first eviction of a process which has copied ahead.
    sealed_first_copied: u64,
    /// An eviction after the second return, and the number of handles then: neighbours share them where mapping takes long.
    evict_shared_ns: u64,
    shared_handles: usize,
    restore_ns: u64,
    /// Part of it from the first to the last handle that was created.
    creation_ns: u64,
    first_kernel_share: Option<f64>,
    hidden_first_kernel_share: Option<f64>,
    fixed_bytes: u64,
    residue_bytes: u64,
    /// Requests with right and with other answers.
    right: u32,
    failed: u32,
}

/// Result of a station.
#[derive(Debug)]
struct StationRun {
    part: Part,
    device: Device,
    models: Vec<ModelRun>,
    cycles: Option<Cycles>,
}

impl EvictOptions {
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.part.is_some(), "--part"),
            (self.weights.is_some(), "--weights"),
            (self.cycles.is_some(), "--cycles"),
        ];
        let given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, name)| name)
    }

    /// Returns whether no model is stated, so that all are measured.
    const fn is_default(&self) -> bool {
        self.part.is_none() && self.weights.is_none()
    }

    /// Returns the stations. `slow`: factor of times, if one is stated.
    fn stations(&self, slow: Option<u32>) -> anyhow::Result<Vec<Station>> {
        let cycles = self.cycles.unwrap_or(CYCLES);
        if self.is_default() {
            anyhow::ensure!(
                slow.is_none(),
                "--slow is used with --part or --weights: the default models have factors of their own"
            );
            let station = |part, time, models, cycles| -> anyhow::Result<Station> {
                Ok(Station {
                    part: Part::named(part)?,
                    time,
                    models,
                    cycles,
                })
            };
            let torpor = ["bert-qa", "resnet-152"].map(ModelPlan::named);
            let of_weights = |size| vec![ModelPlan::of_weights(size)];
            return Ok(vec![
                station("V100", 1, torpor.into(), cycles)?,
                station("A100", 1, of_weights("36GiB"), 0)?,
                station("H200", SLOWED, of_weights("16GB"), 0)?,
                station("H200", 2, of_weights("64GiB"), 0)?,
            ]);
        }
        let part = Part::named(self.part.as_deref().unwrap_or(PART))?;
        let text = self.weights.as_deref().unwrap_or(WEIGHTS);
        let bytes = model_server::bytes(text).with_context(|| {
            format!("--weights={text:?}: allowed: a size such as 512MiB or 16GiB")
        })?;
        let room = part.memory_mib << 20;
        anyhow::ensure!(
            bytes > 0 && bytes <= room / 8 * 7,
            "--weights={text:?}: allowed on {}: above 0, up to {} MiB, seven eighths of its memory",
            part.name,
            (room / 8 * 7) >> 20
        );
        Ok(vec![Station {
            part,
            time: slow.unwrap_or(1),
            models: vec![ModelPlan::of_weights(text)],
            cycles,
        }])
    }
}

/// Runs the scenario. Returns exit code 1 if a byte was wrong or a request lost, or with `--strict` for a disturbed result.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) async fn run(options: &EvictOptions, output: &Output) -> anyhow::Result<ExitCode> {
    let mut stations = options.stations(output.slow)?.into_iter();
    let first = stations.next().context("there is no GPU to measure")?;
    // Its cycles mostly wait, and take none of the times: the other GPUs are measured meanwhile.
    let is_measured = Notify::new();
    let first = measured(first, output.seed, Some(&is_measured));
    let others = async {
        is_measured.notified().await;
        let mut runs = Vec::new();
        for station in stations {
            runs.push(measured(station, output.seed, None).await?);
        }
        let beside = match options.is_default() {
            true => Some(beside::measure().await?),
            false => None,
        };
        anyhow::Ok((runs, beside))
    };
    let (first, (others, beside)) = tokio::try_join!(first, others)?;
    let runs: Vec<StationRun> = std::iter::once(first).chain(others).collect();
    let report = report::Report::new(&runs, beside.as_ref(), output.seed);
    let text = if output.is_json {
        serde_json::to_string(&report)?
    } else {
        report::table(&report)
    };
    print(&text)?;
    let is_bad = !report.is_right() || report.is_disturbed() && output.is_strict;
    Ok(if is_bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Measures the models of a GPU, notifies `is_measured`, and runs its cycles.
async fn measured(
    station: Station,
    seed: u64,
    is_measured: Option<&Notify>,
) -> anyhow::Result<StationRun> {
    let Station {
        part,
        time,
        models,
        cycles,
    } = station;
    let gpu = SoftGpu::scaled(&part.name, time).await?;
    let pods: Vec<String> = (0..models.len())
        .map(|number| format!("model-{number}"))
        .collect();
    let published: Vec<(&str, String)> = pods
        .iter()
        .map(|pod| (pod.as_str(), ANNOTATIONS.to_owned()))
        .collect();
    let configuration = format!(
        "{SLOTS}[memory]\nseal-after = \"{SEAL_AFTER}\"\nstream-restores = true\n[tokens]\ntime-scale = {time}\n"
    );
    let mut agent = NodeAgent::start(&gpu, NODE, &configuration, &published).await?;
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    let environments = agent.served(&names).await?;
    let places: Vec<(&str, &Environment)> = names.iter().copied().zip(&environments).collect();
    let mut observed = Vec::new();
    for (model, (pod, environment)) in models.iter().zip(&places) {
        observed.push(observe(&gpu, &mut agent, pod, environment, model).await?);
    }
    if let Some(is_measured) = is_measured {
        is_measured.notify_one();
    }
    let cycles = match cycles {
        0 => None,
        count => {
            let mut servers = Vec::new();
            for (model, (pod, environment)) in models.iter().zip(&places) {
                let plan = ServerPlan {
                    model,
                    touch: "order",
                    change: CHANGE,
                };
                let server = Server::start(&gpu, &agent, pod, environment, plan).await?;
                servers.push(((*pod).to_owned(), server));
            }
            Some(cycles::run(agent.control(), servers, count, seed).await?)
        }
    };
    agent.check()?;
    let device = gpu.device()?;
    agent.stop().await?;
    gpu.write_ledger()?;
    let folder = gpu.folder().to_owned();
    let read = move || {
        let begin = Ledger::begin(&folder)?.context("the software GPU's ledger is empty")?;
        let ledger = Ledger::read(&folder, &Selection::default())?;
        anyhow::Ok((begin, measure::tracks(&ledger)))
    };
    // Beside the measurement of another GPU.
    let (begin, tracks) = spawn_blocking(read)
        .await
        .context("reading the ledger has panicked")??;
    let since = |(from, to): Stretch| (from.saturating_sub(begin.0), to.saturating_sub(begin.0));
    let models = models
        .iter()
        .zip(observed)
        .map(|(model, own)| {
            let track = |pid: u32| {
                tracks
                    .get(&pid)
                    .context("a model-server is not in the ledger")
            };
            own.figures(model, track(own.pid)?, track(own.hidden_pid)?, since)
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(StationRun {
        part,
        device,
        models,
        cycles,
    })
}

/// What was ordered of a model, and answered.
#[derive(Debug)]
struct Observed {
    /// Process whose kernels have the addresses of the weights as arguments, and the one whose kernels read them from a table.
    pid: u32,
    hidden_pid: u32,
    all: Moved,
    clean: Moved,
    shared: Moved,
    sealed: Moved,
    /// Begin and end of a request to each process whose model was away.
    asked: Stretch,
    hidden_asked: Stretch,
    fixed_bytes: u64,
    right: u32,
    failed: u32,
}

async fn observe(
    gpu: &SoftGpu,
    agent: &mut NodeAgent,
    pod: &str,
    environment: &Environment,
    model: &ModelPlan,
) -> anyhow::Result<Observed> {
    let control = agent.control();
    let mut requests = Requests::default();
    let plan = |touch| ServerPlan {
        model,
        touch,
        change: "0",
    };
    let mut server = Server::start(gpu, agent, pod, environment, plan("order")).await?;
    let begin = Instant::now();
    let all = loop {
        // It must not copy ahead before the first eviction.
        requests.send(&mut server).await?;
        match order::evict(control, pod).await? {
            Ok(moved) => break moved,
            // Its host memory is on the way.
            Err(reason) if reason == NO_MEMORY && begin.elapsed() < HOST_MEMORY_MAX => {}
            Err(reason) => anyhow::bail!("{} cannot evict: {reason}", model.name),
        }
    };
    // The order in which it uses its memory is learnt from this request.
    requests.send(&mut server).await?;
    // The request was the same, so that nothing has changed.
    let clean = order::evicted(control, pod).await?;
    sleep(AWAY).await;
    let asked = requests.send(&mut server).await?;
    let process = order::process(control, pod).await?;
    let shared = order::evicted(control, pod).await?;
    let pid = server.pid;
    server.stop().await?;

    let mut server = Server::start(gpu, agent, pod, environment, plan("hidden")).await?;
    requests.send(&mut server).await?;
    order::is_sealed(control, pod).await?;
    let sealed = order::evicted(control, pod).await?;
    sleep(AWAY).await;
    let hidden_asked = requests.send(&mut server).await?;
    let hidden_pid = server.pid;
    server.stop().await?;
    Ok(Observed {
        pid,
        hidden_pid,
        all,
        clean,
        shared,
        sealed,
        asked,
        hidden_asked,
        fixed_bytes: process["bytes_fixed"].as_u64().unwrap_or(0),
        right: requests.right,
        failed: requests.failed,
    })
}

/// Requests of one kind, and their answers.
#[derive(Debug, Default)]
struct Requests {
    right: u32,
    failed: u32,
}

impl Requests {
    /// Sends the request, and returns its begin and end in ns of CLOCK_MONOTONIC.
    async fn send(&mut self, server: &mut Server) -> anyhow::Result<Stretch> {
        let begin = softgpu_wire::clock::now().0;
        match infer(server.address(), 1).await {
            Answer::Right => self.right += 1,
            Answer::Wrong | Answer::Lost => self.failed += 1,
        }
        server.check()?;
        Ok((begin, softgpu_wire::clock::now().0))
    }
}

impl Observed {
    fn figures(
        &self,
        model: &ModelPlan,
        track: &Track,
        hidden: &Track,
        since: impl Fn(Stretch) -> Stretch,
    ) -> anyhow::Result<ModelRun> {
        let missing = || format!("the ledger shows no move of {}", model.name);
        let eviction = |moved: &Moved| track.eviction(since(moved.span)).with_context(missing);
        let (all, clean) = (eviction(&self.all)?, eviction(&self.clean)?);
        let shared = eviction(&self.shared)?;
        let restore =
            |track: &Track, asked: Stretch, moved: &Moved| track.restore(since(asked), moved.bytes);
        let own = restore(track, self.asked, &self.clean).with_context(missing)?;
        let of_hidden = restore(hidden, self.hidden_asked, &self.sealed).with_context(missing)?;
        Ok(ModelRun {
            name: model.name.clone(),
            bytes: self.all.bytes,
            handles: all.handles,
            evict_all_ns: all.length,
            evict_all_copied: self.all.copied_bytes,
            evict_clean_ns: clean.length,
            evict_clean_copied: self.clean.copied_bytes,
            evict_shared_ns: shared.length,
            shared_handles: shared.handles,
            sealed_first_copied: self.sealed.copied_bytes,
            restore_ns: own.length(),
            creation_ns: own.creation(),
            first_kernel_share: track.first_kernel_share(own),
            hidden_first_kernel_share: hidden.first_kernel_share(of_hidden),
            fixed_bytes: self.fixed_bytes,
            residue_bytes: all.left_bytes,
            right: self.right,
            failed: self.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(part: Option<&str>, weights: Option<&str>) -> EvictOptions {
        EvictOptions {
            part: part.map(str::to_owned),
            weights: weights.map(str::to_owned),
            cycles: None,
        }
    }

    #[test]
    fn one_part_or_size_stands_for_one_model() {
        let stations = options(None, Some("1GiB")).stations(None).unwrap();
        assert_eq!((stations.len(), stations[0].cycles), (1, CYCLES));
        assert_eq!(stations[0].part.name, "H200");
        let stations = options(Some("v100"), None).stations(None).unwrap();
        assert_eq!(stations[0].models, [ModelPlan::of_weights("16GiB")]);
        assert_eq!(options(None, None).stations(None).unwrap().len(), 4);
    }

    #[test]
    fn a_model_that_fits_no_gpu_is_refused() {
        let why = |part, weights| {
            options(part, weights)
                .stations(None)
                .unwrap_err()
                .to_string()
        };
        assert!(why(Some("B300"), None).contains("B300"));
        assert!(why(None, Some("much")).contains("allowed: a size such as"));
        let why = why(Some("V100"), Some("30GiB"));
        assert!(why.contains("up to 28672 MiB"), "{why}");
    }
}
