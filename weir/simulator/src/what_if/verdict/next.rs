//! Options of the command that would decide what an answer leaves open.

use super::super::answer::{Answer, Outcome};
use super::super::cluster::{GPUS_MAX, NODES_MAX};
use super::super::limit::Limit;
use super::super::load::REQUESTS_MAX;
use super::super::sweep::Axis;
use super::super::table::value;

/// Approximate number of runs of a proposed sweep.
const RUNS: f64 = 6.0;
/// Largest number of seeds that can be requested.
const SEEDS_MAX: usize = 100;
/// Factor on the number of seeds in a proposal: four times as many make the interval half as wide.
const SEEDS_TIMES: usize = 4;

/// Returns the options that would decide what the answer at index `at` leaves open, such as `--sweep gpus=14..26..2`; empty if
/// another run of this command would decide nothing. `axis` is the value that was swept, with rising values.
pub(super) fn options(answers: &[&Answer], axis: Option<Axis>, at: usize) -> String {
    let own = answers[at];
    match (own.outcome(), axis) {
        (Outcome::Probably, _) => seeds(own, axis),
        (Outcome::Yes, None) => below(Axis::Gpus, None, f64::from(own.gpus_per_node)),
        (Outcome::No, None) => beyond(own, Axis::Gpus, f64::from(own.gpus_per_node)),
        (Outcome::Yes, Some(Axis::RateScale)) => {
            let here = value(own, axis);
            match answers.get(at + 1) {
                None => range(Axis::RateScale, here * 1.25, here * 2.5, here * 0.25),
                Some(_) => String::new(),
            }
        }
        (Outcome::Yes, Some(axis)) => {
            let short = at.checked_sub(1).and_then(|at| answers.get(at));
            match short {
                Some(short) if short.outcome() == Outcome::Probably => seeds(short, Some(axis)),
                short => below(
                    axis,
                    short.map(|short| value(short, Some(axis))),
                    value(own, Some(axis)),
                ),
            }
        }
        (Outcome::No, Some(axis)) => {
            let edge = if axis == Axis::RateScale {
                answers.first()
            } else {
                answers.last()
            };
            edge.map_or_else(String::new, |edge| {
                beyond(own, axis, value(edge, Some(axis)))
            })
        }
    }
}

/// Returns the effect of the options, in a sentence; empty without options.
pub(super) fn sentence(options: &str) -> String {
    if options.is_empty() {
        return String::new();
    }
    let verb = if options.starts_with("--seeds") {
        "would settle it"
    } else {
        "would show more"
    };
    format!("{options} {verb}.")
}

/// Proposes more seeds at the undecided value alone, as many as the bound on requests over all seeds allows.
fn seeds(own: &Answer, axis: Option<Axis>) -> String {
    let each = own.requests / own.seeds.max(1) as u64;
    // Requests that are not counted are read as well; the rest of the margin is for seeds that draw more requests.
    let room = REQUESTS_MAX as u64 / (each + each / 3).max(1);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    let more = (own.seeds * SEEDS_TIMES).min(SEEDS_MAX).min(room);
    if more <= own.seeds {
        return String::new();
    }
    match axis {
        None => format!("--seeds {more}"),
        Some(axis) => format!(
            "--seeds {more} --sweep {}={}",
            axis.name(),
            value(own, Some(axis))
        ),
    }
}

/// Proposes values between the one that is not enough, or zero, and the one that is.
fn below(axis: Axis, short: Option<f64>, enough: f64) -> String {
    if !matches!(axis, Axis::Gpus | Axis::Nodes) {
        let Some(short) = short else {
            return range(axis, enough / 4.0, enough * 0.75, enough / 4.0);
        };
        // Values between those of a fine sweep add little.
        return if enough - short > enough / 4.0 {
            let step = (enough - short) / 4.0;
            range(axis, short + step, enough - step, step)
        } else {
            String::new()
        };
    }
    let from = short.unwrap_or(0.0) + 1.0;
    if from > enough - 1.0 {
        return String::new();
    }
    whole(axis, from, enough - 1.0)
}

/// Proposes values beyond the last one that was tried, none of which is enough.
fn beyond(own: &Answer, axis: Axis, edge: f64) -> String {
    let limit = own.binding.limit;
    let helps = match axis {
        Axis::Gpus | Axis::Nodes | Axis::RateScale => limit != Limit::Objective,
        Axis::ModelsGb => matches!(limit, Limit::Memory | Limit::Swapping),
        Axis::HostGbPerS => matches!(limit, Limit::Swapping | Limit::Objective),
    };
    if !helps {
        let most = f64::from(GPUS_MAX);
        let gpus = f64::from(own.gpus_per_node);
        // If GPU time is the limit, more of other resources does not help.
        return if matches!(limit, Limit::GpuTime | Limit::Bursts) && gpus < most {
            whole(Axis::Gpus, gpus + 1.0, f64::min(2.0 * gpus + 1.0, most))
        } else {
            String::new()
        };
    }
    match axis {
        Axis::Gpus | Axis::Nodes => {
            let most = f64::from(if axis == Axis::Gpus {
                GPUS_MAX
            } else {
                NODES_MAX
            });
            if edge >= most {
                return String::new();
            }
            whole(axis, edge + 1.0, f64::min(2.0 * edge + 1.0, most))
        }
        Axis::RateScale => range(axis, edge / 8.0, edge * 0.875, edge / 8.0),
        Axis::ModelsGb | Axis::HostGbPerS => range(axis, edge * 1.5, edge * 4.0, edge / 2.0),
    }
}

/// Returns a range of whole numbers with about [`RUNS`] values.
fn whole(axis: Axis, from: f64, to: f64) -> String {
    if from >= to {
        return format!("--sweep {}={from}", axis.name());
    }
    let step = libm::ceil((to - from + 1.0) / (RUNS + 2.0)).max(1.0);
    let to = from + libm::ceil((to - from) / step) * step;
    let most = f64::from(if axis == Axis::Gpus {
        GPUS_MAX
    } else {
        NODES_MAX
    });
    let to = if to > most { to - step } else { to };
    if step == 1.0 {
        format!("--sweep {}={from}..{to}", axis.name())
    } else {
        format!("--sweep {}={from}..{to}..{step}", axis.name())
    }
}

/// Returns a range of numbers; empty if an end is not allowed on the axis.
fn range(axis: Axis, from: f64, to: f64, step: f64) -> String {
    let short = |value: f64| libm::round(value * 1e3) / 1e3;
    let (from, to, step) = (short(from), short(to), short(step));
    if axis.check(from).is_err() || axis.check(to).is_err() || step <= 0.0 {
        return String::new();
    }
    format!("--sweep {}={from}..{to}..{step}", axis.name())
}
