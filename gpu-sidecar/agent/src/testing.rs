//! Fixtures for the unit tests of several modules.

use std::path::PathBuf;
use std::sync::Arc;

use annotations::{Evict, Isolation, SHARE_WHOLE};

use crate::state::{
    Figures, Pod, PodCounters, PodFigures, PodKey, PodSettings, Slot, SlotKey, SlotKind,
};

/// Returns an H100 slot shared by MPS.
pub(crate) fn slot(key: u32) -> Slot {
    Slot {
        key: SlotKey(key),
        name: key.to_string(),
        uuid: format!("GPU-00000000-0000-0000-0000-{key:012}"),
        product: "NVIDIA H100 80GB HBM3".to_owned(),
        kind: SlotKind::Mps,
        sms: Some(132),
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 48,
        seats: 48,
        context_residue: None,
        host_path: key,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: Some(PathBuf::from(format!("/run/weir/mps/{key}/pipe"))),
        mig: None,
    }
}

/// Returns the settings of a shared pod: a quarter of the SMs, request 30 % and limit 80 % of the time, 8 GiB of memory.
pub(crate) fn settings() -> PodSettings {
    PodSettings {
        isolation: Isolation::Shared,
        sm_hundredths: 2_500,
        quota_request_ppm: SHARE_WHOLE * 3 / 10,
        quota_limit_ppm: SHARE_WHOLE * 8 / 10,
        gpu_memory: Some(8 << 30),
        evict: Evict::Host,
        slo: None,
        is_pipeline: false,
        slo_percentile_ppm: 980_000,
        version: String::new(),
    }
}

/// Returns a pod of this revision on slot 0.
pub(crate) fn pod(key: u32, revision: &str) -> Arc<Pod> {
    Arc::new(Pod {
        key: PodKey(key),
        serial: u64::from(key) + 1,
        name: format!("{revision}-{key}"),
        namespace: "default".to_owned(),
        function: revision.to_owned(),
        revision: revision.to_owned(),
        uid: None,
        cgroup: None,
        pod_name: None,
        mps_mount: None,
        settings: settings(),
        slot: SlotKey(0),
        folder: PathBuf::from("/run/weir/pods").join(format!("{revision}-{key}")),
    })
}

/// Returns figures of these pods with all counters zero.
pub(crate) fn figures_of(at_ns: u64, pods: &[&Arc<Pod>]) -> Figures {
    let pods = pods.iter().map(|pod| PodFigures {
        lease: agent_core::LeaseFigures::default(),
        pod: Arc::clone(pod),
        processes: Vec::new(),
        counters: PodCounters::default(),
        debt_ns: 0,
        memory_used: 0,
        memory_limit: pod.settings.gpu_memory,
        has_token: false,
        is_waiting: false,
        silent_processes: 0,
    });
    Figures {
        at_ns,
        pods: pods.collect(),
        ..Figures::none()
    }
}
