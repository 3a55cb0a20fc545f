//! GPUs and memory that batches of pods need.

use policy::footprint::Footprint;
use policy::rectangles::{
    FunctionId, InstanceId, Order, Pod, Rectangles, Refusal, Settings, Sharing, SlotId,
};
use policy::tokens::{SM_WHOLE, Share};

use simulator::random::{Purpose, Streams};
use simulator::shared::models::Models;
use simulator::shared::profile::{QUOTAS, SMS};
use simulator::shared::run::RunError;

/// The pods of FaST-GShare §5.4, in its order: model, SMs and quota in percent.
pub const EIGHT: [(&str, u32, u32); 8] = [
    ("ResNet", 12, 40),
    ("ResNet", 12, 40),
    ("ResNet", 12, 40),
    ("ResNet", 12, 40),
    ("RNNT", 24, 40),
    ("RNNT", 24, 40),
    ("BERT", 50, 60),
    ("BERT", 50, 60),
];

/// Number of GPUs that a batch of pods needs, by what may be shared and the order of placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpusNeeded {
    /// Space and time are shared, and the largest area is placed first. S06 for the eight pods.
    pub sorted: u32,
    /// Space and time are shared, and pods are placed in order of arrival.
    pub arrival: u32,
    /// As `sorted`, with nine tenths of the window allocated, as in Weir.
    pub planned: u32,
    /// Only time is shared.
    pub time_only: u32,
    /// Nothing is shared: one pod on each GPU.
    pub exclusive: u32,
}

/// Returns the number of GPUs that these pods need; each GPU has the memory given in the data.
///
/// # Errors
/// Returns an error if a pod fits no GPU.
fn needed(models: &Models, pods: &[(InstanceId, Pod)]) -> Result<GpusNeeded, RunError> {
    let whole = Settings {
        width: Share::WHOLE,
        ..Settings::default()
    };
    let count = |settings: Settings| {
        let mut packer = Rectangles::new(settings)?;
        for (slot, _) in (0..).zip(pods) {
            packer.add_slot(SlotId(slot), models.gpu_memory())?;
        }
        let mut actions = Vec::new();
        packer.place_all(pods, &mut actions);
        let mut gpus = 0;
        for &(instance, _) in pods {
            let (slot, _) = packer.place_of(instance).ok_or(Refusal::NoArea)?;
            gpus = gpus.max(slot.0 + 1);
        }
        Ok::<_, RunError>(gpus)
    };
    Ok(GpusNeeded {
        sorted: count(whole)?,
        arrival: count(Settings {
            order: Order::Arrival,
            ..whole
        })?,
        planned: count(Settings::default())?,
        time_only: count(Settings {
            sharing: Sharing::TimeOnly,
            ..whole
        })?,
        exclusive: count(Settings {
            sharing: Sharing::Exclusive,
            ..whole
        })?,
    })
}

/// Computes S06 for the eight pods of §5.4. The result does not depend on chance.
///
/// # Errors
/// Returns an error if a pod fits no GPU.
pub fn eight_pods(models: &Models) -> Result<GpusNeeded, RunError> {
    needed(models, &eight_at(models, 100))
}

/// Returns the eight pods with their quotas scaled to this percentage.
pub(super) fn eight_at(models: &Models, percent: u32) -> Vec<(InstanceId, Pod)> {
    let pods = (0..).zip(&EIGHT).map(|(at, &(name, sm, quota))| {
        let function = models.model(name).and_then(|at| u32::try_from(at).ok());
        let pod = Pod {
            function: FunctionId(function.unwrap_or(u32::MAX)),
            quota: Share::from_percent(quota * percent / 100),
            sm: sm * 100,
            footprint: models.footprint(name),
        };
        (InstanceId(at), pod)
    });
    pods.collect()
}

/// Number of GPUs for a random batch, and its total area.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Batch {
    /// GPUs needed under each form of sharing.
    pub needed: GpusNeeded,
    /// Area of all pods in GPUs, a lower bound for any packing.
    pub area: f64,
}

/// Packs a batch of `pods` random shapes of the grid, each equally likely, without regard to memory.
///
/// # Errors
/// Returns an error if a pod fits no GPU.
pub fn batch(models: &Models, seed: u64, pods: u32) -> Result<Batch, RunError> {
    let mut stream = Streams::new("fast-batch", seed).stream(Purpose::Shape, 0);
    let mut area = 0.0;
    let mut pick = |from: &[u32]| {
        let at = usize::try_from(stream.bits() % from.len() as u64).unwrap_or(0);
        from[at]
    };
    let pods: Vec<_> = (0..pods)
        .map(|at| {
            let pod = Pod {
                function: FunctionId(0),
                quota: Share::from_percent(pick(&QUOTAS)),
                sm: pick(&SMS) * 100,
                footprint: Footprint::default(),
            };
            area += f64::from(pod.quota.parts_per_million()) / 1e6 * f64::from(pod.sm)
                / f64::from(SM_WHOLE);
            (InstanceId(at), pod)
        })
        .collect();
    Ok(Batch {
        needed: needed(models, &pods)?,
        area,
    })
}

/// Memory of a GPU that pods of one model take, in units of 2^20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryNeeded {
    /// Memory if the pods share their weights. S10 for three pods, S11 for one.
    pub shared: u64,
    /// Memory if each pod has its own copy.
    pub alone: u64,
    /// Number of pods that fit a GPU if they share weights.
    pub fit_shared: u32,
    /// Number of pods that fit a GPU if each has its own copy.
    pub fit_alone: u32,
}

/// Computes S10 and S11 for `pods` pods of `ViT_huge` (FaST-GShare §5.5). Returns `None` if the data lack the model.
#[must_use]
pub fn vit_huge(models: &Models, pods: u32) -> Option<MemoryNeeded> {
    let memory = models.memory("ViT_huge")?;
    let (shared, alone) = (memory.shared(), memory.alone());
    Some(MemoryNeeded {
        shared: shared.of(pods) >> 20,
        alone: alone.of(pods) >> 20,
        fit_shared: shared.pods_in(models.gpu_memory()),
        fit_alone: alone.pods_in(models.gpu_memory()),
    })
}
