//! A node with exclusive slots, on which functions take turns.

use super::super::agent::{NodeAgent, PodFiles};
use super::super::children::Names;
use super::super::gpu::SoftGpu;
use super::cluster::whole;
use super::function::{FUNCTIONS, Function, Turns};

/// Memory of each slot for models, in bytes before scaling: for both models of [`Turns::Beside`], and one of [`Turns::Instead`].
const MODELS: u64 = 3 << 29;
/// What a context takes, in bytes before scaling.
const RESIDUE: u64 = 300_000_000;

/// The running agent, and its GPUs.
#[derive(Debug)]
pub(super) struct LeaseNode {
    pub(super) agent: NodeAgent,
    pub(super) gpu: SoftGpu,
}

impl LeaseNode {
    /// Starts an agent with a slot for each kind of turns, and waits until it serves the pods of all functions which take turns.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let slots = u32::try_from(Turns::ALL.len())?;
        let gpu = SoftGpu::of(vec![whole("V100", slots)]).await?;
        let pods = FUNCTIONS.iter().filter_map(files);
        let pods: Vec<PodFiles> = pods.collect();
        let scale = u64::from(gpu.scale().bytes);
        let configuration = format!(
            "[slots]\nkind = \"exclusive\"\nmemory = \"{}\"\n[slots.context-residue]\nexclusive = \"{}\"\n",
            MODELS / scale,
            RESIDUE / scale,
        );
        let mut agent = NodeAgent::start_with(&gpu, "", &configuration, &pods).await?;
        agent.placed(pods.len()).await?;
        Ok(Self { agent, gpu })
    }

    /// Returns the settings of a function's pod on the node.
    pub(super) fn names(&self, function: Function, turns: Turns) -> Names {
        let pod = function.pod();
        let mut names = function.names();
        let socket = self.agent.queue_socket(&pod).display().to_string();
        names.environment.push(("WEIR_QUEUE_SOCKET", socket));
        let library = self.agent.preload(&pod).display().to_string();
        names.application = vec![
            ("LD_PRELOAD", library),
            ("MODEL_WEIGHTS", turns.weights().to_owned()),
            ("MODEL_TOUCH", "order".to_owned()),
        ];
        names
    }
}

/// Returns what the agent learns of a function's pod; `None` if it takes no turns.
fn files(function: &Function) -> Option<PodFiles> {
    let turns = function.turns?;
    let name = function.name;
    Some(PodFiles {
        name: function.pod(),
        annotations: format!(
            "weir.dev/isolation=\"tenant\"\nweir.dev/slo=\"{}ms\"\n",
            function.objective_ms
        ),
        about: format!(
            "namespace = \"default\"\nrevision = \"{}\"\nfunction = \"{name}\"\nslot = \"{}\"\n",
            function.revision(),
            turns.slot()
        ),
    })
}
