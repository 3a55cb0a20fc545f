//! Slots: the use of GPUs and slices, and their health.

use super::{own, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const OWN: &str = "gpu=~\"$gpu\",slot=~\"$slot\"";
const LEGEND: &str = "{{slot}} {{gpu}}";

/// Returns the dashboard `weir-slots`.
pub(super) fn board() -> Board {
    let max = |metric: &str| format!("max by (slot, gpu) ({})", own(metric, OWN));
    Board {
        uid: "weir-slots",
        title: "Weir / Slots",
        description: "What each GPU and MIG slice does, and whether it is well.",
        variables: vec![
            Variable::all("gpu", "weir_gpu_slot_lost"),
            Variable::all("slot", "weir_gpu_slot_lost{gpu=~\"$gpu\"}"),
        ],
        rows: vec![
            Row {
                title: "State",
                panels: vec![
                    Panel::new(Drawing::Stat, "Slots", Unit::Short,
                        "Slots that agents serve. Fewer than there are GPUs and slices: an agent does not run, or NVML does not answer.")
                        .query(format!("count({})", max("weir_gpu_slot_lost")), "slots").base("red").threshold(1.0, "green").link("weir-health"),
                    Panel::new(Drawing::Stat, "Lost", Unit::Short,
                        "Slots on which nothing can compute: the agent's log and events say why.")
                        .query(format!("sum({})", max("weir_gpu_slot_lost")), "lost").threshold(1.0, "red").link("weir-health"),
                    Panel::new(Drawing::Stat, "Pods", Unit::Short,
                        "Pods that are placed on the slots. None although functions have instances: the pods wait for their volumes, and their events say why.")
                        .query(format!("sum({})", own("weir_gpu_pods", OWN)), "pods").link("weir-sharing"),
                    Panel::new(Drawing::Stat, "Seats", Unit::Short,
                        "Pods for which the slots have a place. As many as pods: the next pod stays Pending.")
                        .query(format!("sum({})", max("weir_gpu_slot_seats")), "seats").link("weir-sharing"),
                    Panel::new(Drawing::States, "Slot lost", Unit::Short,
                        "Red: nothing can compute on the slot. Pods there stay and fail until it is back or they are deleted.")
                        .query(max("weir_gpu_slot_lost"), LEGEND).state("0", "well", "green").state("1", "lost", "red").link("weir-health"),
                    Panel::new(Drawing::States, "MPS daemon", Unit::Short,
                        "The state of each shared slot's MPS daemon, now and before. down: it is being started again. unable: it cannot run; the agent's events say why, and pods that share are refused.")
                        .query(format!("max by (slot, gpu) (({}) * 1 or ({}) * 2 or ({}) * 3 or ({}) * 4)",
                            own("weir_gpu_slot_mps_state", &format!("{OWN},state=\"up\"")) + " == 1",
                            own("weir_gpu_slot_mps_state", &format!("{OWN},state=\"starting\"")) + " == 1",
                            own("weir_gpu_slot_mps_state", &format!("{OWN},state=\"down\"")) + " == 1",
                            own("weir_gpu_slot_mps_state", &format!("{OWN},state=\"unable\"")) + " == 1"), LEGEND)
                        .state("1", "up", "green").state("2", "starting", "blue").state("3", "down", "orange").state("4", "unable", "red").link("weir-health"),
                ],
            },
            Row {
                title: "Use",
                panels: vec![
                    Panel::new(Drawing::Lines, "Busy", Unit::Ratio,
                        "Share of wall time in which at least one kernel ran. This is token-busy time, not occupancy of SMs.")
                        .query(rate_by("slot, gpu", "weir_gpu_slot_busy_seconds_total", OWN), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Lines, "SMs in use", Unit::Ratio,
                        "SM time that kernels held, of the SMs that the slot has. Low while busy: kernels are too small, or pods may use too few SMs.")
                        .query(format!("{} / on (slot, gpu) {}", rate_by("slot, gpu", "weir_gpu_used_sm_seconds_total", OWN), max("weir_gpu_slot_sms")), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Lines, "SMs under tokens", Unit::Ratio,
                        "SMs that pods with a token may use, at this moment.")
                        .query(max("weir_gpu_slot_held_ratio"), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Idle while pods wait", Unit::Ratio,
                        "Share of time in which a pod that could have computed waited although SMs were free. Above 2 %: the agent is short of CPU, or programs hold tokens without work.")
                        .query(rate_by("slot, gpu", "weir_gpu_slot_idle_while_waiting_seconds_total", OWN), LEGEND).threshold(0.02, "red").link("weir-health"),
                    Panel::new(Drawing::Lines, "Memory", Unit::Ratio,
                        "Memory that processes hold, by NVML, of the slot's. Near 1 the next model does not fit.")
                        .query(format!("{} / {}", max("weir_gpu_slot_memory_used_bytes"), max("weir_gpu_slot_memory_bytes")), LEGEND).threshold(0.95, "red").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Holding and waiting pods", Unit::Short,
                        "Pods that have a token, and pods that wait for one, at this moment.")
                        .query(max("weir_gpu_slot_holding_pods"), "{{slot}} holding")
                        .query(max("weir_gpu_slot_waiting_pods"), "{{slot}} waiting").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "MPS clients", Unit::Short,
                        "Processes of each slot's MPS daemon. At the limit of the driver (16, 48 or 60, less on slices) further ones are refused.")
                        .query(max("weir_gpu_slot_mps_clients"), LEGEND).link("weir-health"),
                    Panel::new(Drawing::Lines, "MPS restarts", Unit::Short,
                        "Starts of a daemon that had ended: each has made all its clients fail. See the agent's events.")
                        .query(format!("sum by (slot, gpu) (increase({}[1h]))", own("weir_gpu_slot_mps_restarts_total", OWN)), LEGEND).threshold(1.0, "red").link("weir-health"),
                ],
            },
        ],
    }
}
