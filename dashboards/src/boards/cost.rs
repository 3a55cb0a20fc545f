//! Cost: how much of which slot each function uses, and at what price.

use super::{own, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const OWN: &str = "gpu=~\"$gpu\"";
const LEGEND: &str = "{{namespace}}/{{function}}";

/// Returns the dashboard `weir-cost`.
pub(super) fn board() -> Board {
    let busy = || {
        format!(
            "rate({}[$__rate_interval])",
            own("weir_gpu_slot_busy_seconds_total", OWN)
        )
    };
    let on = "* on (slot, gpu) group_left ()";
    let max = |metric: &str| format!("max by (slot, gpu) ({})", own(metric, OWN));
    // An instance is allocated its slot, or its part of a shared one's plan, whether it computes or not.
    let allocated = format!(
        "clamp_max(sum by (namespace, function, slot, gpu) ({}), 1)",
        own("weir_gpu_quota_limit_ratio", OWN),
    );
    let used = rate_by(
        "namespace, function, slot, gpu",
        "weir_gpu_used_seconds_total",
        OWN,
    );
    Board {
        uid: "weir-cost",
        title: "Weir / Cost",
        description: "How much GPU time functions use and hold, in seconds, compute slices and money. Each figure is another measure; none is to be compared with another.",
        variables: vec![Variable::all("gpu", "weir_gpu_slot_lost")],
        rows: vec![
            Row {
                title: "All slots",
                panels: vec![
                    Panel::new(Drawing::Stat, "GPUs in use", Unit::Short,
                        "GPUs of which at least one slot is busy, on average over the shown interval: GPU time.")
                        .query(format!("sum(max by (gpu) ({}))", busy()), "GPUs").link("weir-slots"),
                    Panel::new(Drawing::Stat, "Slots busy", Unit::Short,
                        "Sum of busy time over slots: slot time. Time in which a model is loaded counts.")
                        .query(format!("sum({})", busy()), "slots").link("weir-slots"),
                    Panel::new(Drawing::Stat, "Compute slices busy", Unit::Short,
                        "Busy time times compute slices: GPC-seconds per second. A whole GPU has seven.")
                        .query(format!("sum({} {on} {})", busy(), max("weir_gpu_slot_gpcs")), "slices").link("weir-slots"),
                    Panel::new(Drawing::Stat, "Price of all slots per hour", Unit::Currency,
                        "What the slots cost, used or not, in the currency of price.gpu-hour. Nothing is shown without a price.")
                        .query(format!("sum({}) * 3600", max("weir_gpu_slot_price_per_second")), "price").link("weir-slots"),
                    Panel::new(Drawing::Lines, "Slot time busy", Unit::Short,
                        "Slots on which kernels ran, of those that there are. A large gap at a good attainment: fewer GPUs would do.")
                        .query(format!("sum({})", busy()), "busy")
                        .query(format!("count({})", max("weir_gpu_slot_lost")), "there are").link("weir-slots"),
                    Panel::new(Drawing::Lines, "Price of busy time per hour", Unit::Currency,
                        "Price of slots while kernels ran on them, against that of all slots.")
                        .query(format!("sum({} {on} {}) * 3600", busy(), max("weir_gpu_slot_price_per_second")), "busy")
                        .query(format!("sum({}) * 3600", max("weir_gpu_slot_price_per_second")), "all").link("weir-slots"),
                ],
            },
            Row {
                title: "By function",
                panels: vec![
                    Panel::new(Drawing::Stack, "Used", Unit::Short,
                        "Slots' time in which kernels of the function ran.")
                        .query(format!("sum by (namespace, function) ({used})"), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Stack, "Allocated", Unit::Short,
                        "Slots' time that the function's pods may take: a whole slot, or the limit of its quota. Far above used: fewer instances or a lower limit.")
                        .query(format!("sum by (namespace, function) ({allocated})"), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Stack, "Compute slices used", Unit::Short,
                        "Used time times the compute slices of its slot: GPC-seconds per second.")
                        .query(format!("sum by (namespace, function) ({used} {on} {})", max("weir_gpu_slot_gpcs")), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Stack, "Price of used time per hour", Unit::Currency,
                        "Used time times the price of its slot. Nothing is shown without price.gpu-hour in the configuration of the agents.")
                        .query(format!("sum by (namespace, function) ({used} {on} {}) * 3600", max("weir_gpu_slot_price_per_second")), LEGEND).link("weir-sharing"),
                    Panel::new(Drawing::Table, "Used in the shown time", Unit::Seconds,
                        "GPU seconds of each function, for a bill by use.")
                        .query(format!("sort_desc(sum by (namespace, function) (increase({}[$__range])))", own("weir_gpu_used_seconds_total", OWN)), "").link("weir-sharing"),
                ],
            },
        ],
    }
}
