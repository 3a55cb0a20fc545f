//! Duration of requests with a model that is swapped in (M2.6, mechanisms §2.6).
//!
//! | law | copies | compute |
//! |---|---|---|
//! | fitted | the weights at the link's rate | concurrent: max(transfer, C) + a, fitted to Torpor Tables 3 and 4 |
//! | groups | groups, one after the other; a group never crosses a block | in as many equal steps, each after its group arrived |
//! | whole | one copy | after it |
//!
//! A copy of b bytes takes α + b/B. The link's rate is that of copies of a group's size, so α is included in it, and
//! a smaller copy has a lower rate, a larger one a higher. The weights fill all blocks of a model to the same share, and compute
//! is spread evenly over the groups \[assumptions: no model knowledge\]. When loads share a path, groups are delayed as the load
//! is ([`super::links`]); [`policy::swap::timeline()`] computes the end of the last step.

use std::num::NonZeroU64;

use policy::swap::{Groups, ModelBlock, Step, timeline};
use policy::{Span, Time};
use serde::Deserialize;

use super::hardware::{Hardware, bytes, millis, nanos};
use super::links::Progress;

/// Law by which swaps take their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapTime {
    /// A swap and the execution C take max(transfer, C) + a, fitted to Torpor's tables.
    #[default]
    Fitted,
    /// Copies in groups, pipelined with execution.
    Groups,
    /// The whole model first, then execution: without pipelining (Torpor §7.1, Fig. 7 "pinned").
    Whole,
}

/// Costs of copies, for laws under which the number of copies matters.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyTimes {
    /// Size of a group, in units of 10⁶ bytes.
    pub group_mb: f64,
    /// Fixed cost of a copy besides its bytes, α, in microseconds.
    pub copy_adds_us: f64,
    /// Fixed cost of a swap besides copies and compute, in milliseconds.
    pub swap_adds_ms: f64,
}

/// Division of a model into copies.
#[derive(Clone, Debug)]
struct Cut {
    /// Size of the weights, in bytes.
    weights: f64,
    /// By copy, the share of all copies' time that remains at its arrival, at the host's rate; approximate at other rates.
    left: Vec<f64>,
}

/// Law of a run, with the copies of each model.
#[derive(Clone, Debug)]
pub(super) struct Swaps {
    law: SwapTime,
    cuts: Vec<Cut>,
    /// Duration of an uncontended inference with a load from the host, by model.
    alone: Vec<Span>,
    times: CopyTimes,
    adds: Span,
    /// Buffer for the intervals between arrivals of groups.
    transfers: Vec<Span>,
}

impl Swaps {
    pub(super) fn new(hardware: &Hardware, law: SwapTime) -> Self {
        let rate = hardware.link.host_gb_per_s * 1e9;
        let cut = |model: usize| {
            let weights = hardware.models[model].weights_mb * 1e6;
            let copies = match law {
                SwapTime::Fitted | SwapTime::Whole => vec![weights],
                SwapTime::Groups => groups(hardware, model),
            };
            let takes = |&bytes: &f64| copy_ns(&hardware.copies, bytes, 1.0, rate);
            let all: f64 = copies.iter().map(takes).sum();
            let mut past = 0.0;
            let left = copies.iter().map(|bytes| {
                past += takes(bytes);
                1.0 - past / all
            });
            Cut {
                weights,
                left: left.collect(),
            }
        };
        let adds = match law {
            SwapTime::Fitted => hardware.link.swap_adds_ms,
            SwapTime::Groups | SwapTime::Whole => hardware.copies.swap_adds_ms,
        };
        let models = hardware.models.len();
        let mut swaps = Self {
            law,
            cuts: (0..models).map(cut).collect(),
            alone: Vec::new(),
            times: hardware.copies,
            adds: millis(adds),
            transfers: Vec::new(),
        };
        for model in 0..models {
            let alone = match law {
                SwapTime::Fitted => hardware.swapped_alone(model),
                SwapTime::Groups | SwapTime::Whole => {
                    let takes = nanos(swaps.takes_ns(model, rate));
                    let progress = [
                        Progress::new(Time::ZERO, takes),
                        Progress::new(Time::ZERO.after(takes), Span::ZERO),
                    ];
                    let executed = Time::ZERO.after(millis(hardware.models[model].execution_ms));
                    let end = swaps.finished(model, executed, Time::ZERO.after(takes), &progress);
                    end.since(Time::ZERO)
                }
            };
            swaps.alone.push(alone);
        }
        swaps
    }

    /// Returns the duration of an inference with a load from the host, without contention and noise.
    pub(super) fn alone(&self, model: usize) -> Span {
        self.alone[model]
    }

    /// Returns the duration of a model's copies, one after the other over an uncontended link of this rate, in nanoseconds.
    /// `rate` is in bytes per second.
    pub(super) fn takes_ns(&self, model: usize, rate: f64) -> f64 {
        let cut = &self.cuts[model];
        match self.law {
            SwapTime::Fitted => cut.weights / rate * 1e9,
            SwapTime::Groups | SwapTime::Whole => {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
                let copies = cut.left.len() as f64;
                copy_ns(&self.times, cut.weights, copies, rate)
            }
        }
    }

    /// Returns when a request ends after its load is over. `executed` is the time at which its execution would have ended if it
    /// had begun with the first copy; `progress` is the course of the load.
    pub(super) fn finished(
        &mut self,
        model: usize,
        executed: Time,
        now: Time,
        progress: &[Progress],
    ) -> Time {
        let (SwapTime::Groups | SwapTime::Whole, [first, ..]) = (self.law, progress) else {
            return executed.max(now).after(self.adds);
        };
        let began = first.at;
        self.arrivals(model, progress, now);
        let steps = u64::try_from(self.transfers.len()).unwrap_or(u64::MAX);
        let execution = executed.since(began).0;
        let (each, rest) = (execution / steps, execution % steps);
        let compute = (1_u32..).zip(0..steps).map(|(needs, at)| Step {
            needs,
            compute: Span(each + u64::from(at < rest)),
        });
        let line = timeline(Span::ZERO, self.transfers.iter().copied(), compute);
        began.after(line.finished).after(self.adds)
    }

    /// Computes the intervals between the arrivals of a load's copies from its progress.
    fn arrivals(&mut self, model: usize, progress: &[Progress], now: Time) {
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.clear();
        let parts = &self.cuts[model].left;
        let whole = progress[0].left;
        let (mut at, mut before) = (0, progress[0].at);
        for (number, part_left) in (1..).zip(parts) {
            let left = whole * part_left;
            while at + 1 < progress.len() && progress[at + 1].left > left {
                at += 1;
            }
            let arrives = match progress.get(at + 1) {
                Some(next) if number < parts.len() => {
                    let from = &progress[at];
                    let part = (from.left - left) / (from.left - next.left);
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
                    let ns = next.at.since(from.at).0 as f64;
                    from.at.after(nanos((ns * part).max(0.0)))
                }
                _ => now,
            };
            let arrives = arrives.max(before).min(now);
            transfers.push(arrives.since(before));
            before = arrives;
        }
        self.transfers = transfers;
    }
}

/// Returns the duration of `copies` copies of `bytes` bytes in all, in nanoseconds. On a link so fast that α would be longer than
/// the copy of a group, a copy costs α only.
fn copy_ns(times: &CopyTimes, bytes: f64, copies: f64, rate: f64) -> f64 {
    let group = times.group_mb * 1e6;
    let of_group = group / rate * 1e9;
    let adds = (times.copy_adds_us * 1e3).min(of_group);
    copies * adds + bytes * (of_group - adds) / group
}

/// Returns the sizes of a model's groups in bytes, in order.
fn groups(hardware: &Hardware, model: usize) -> Vec<f64> {
    let weights = hardware.models[model].weights_mb * 1e6;
    let blocks = hardware.blocks(model);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 bytes")]
    let part = weights / blocks.iter().sum::<u64>() as f64;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 bytes")]
    let filled = |&block: &u64| bytes(block as f64 * part).max(1);
    let size = bytes(hardware.copies.group_mb * 1e6);
    let mut groups = Groups::new(NonZeroU64::new(size).unwrap_or(NonZeroU64::MIN));
    groups.set((0..).map(ModelBlock).zip(blocks.iter().map(filled)));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 bytes")]
    let each = groups.groups().iter().map(|group| group.bytes as f64);
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::links::{End, Links};
    use super::*;

    const MS: f64 = 1e6;

    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
    fn ms(span: Span) -> f64 {
        span.0 as f64 / MS
    }

    fn of(law: SwapTime) -> (Hardware, Swaps) {
        let hardware = Hardware::torpor();
        let swaps = Swaps::new(&hardware, law);
        (hardware, swaps)
    }

    /// Returns the deviation from the printed value, in tenths of a percent.
    fn off(ours: f64, printed: f64) -> f64 {
        libm::round((ours / printed - 1.0) * 1_000.0)
    }

    /// Torpor Table 4, columns "swap PCIe" and "swap NVLink", and the deviations of our values, in tenths of a percent: 9.3 % at
    /// most, where the fitted law is 9.5 % off.
    #[test]
    fn groups_reproduce_table_4() {
        let (hardware, mut swaps) = of(SwapTime::Groups);
        let mut found = Vec::new();
        for (name, pcie, nvlink) in [
            ("DenseNet-169", 27.0, 26.0),
            ("DenseNet-201", 30.0, 30.0),
            ("Inception-v3", 17.0, 16.0),
            ("EfficientNet", 13.0, 13.0),
            ("ResNet-50", 13.0, 11.0),
            ("ResNet-101", 22.0, 16.0),
            ("ResNet-152", 25.0, 20.0),
            ("Bert-qa", 144.0, 45.0),
        ] {
            let model = hardware.model(name).unwrap();
            let takes = nanos(swaps.takes_ns(model, 44e9));
            let executed = Time::ZERO.after(millis(hardware.models[model].execution_ms));
            let now = Time::ZERO.after(takes);
            let progress = [
                Progress::new(Time::ZERO, takes),
                Progress::new(now, Span::ZERO),
            ];
            let linked = swaps.finished(model, executed, now, &progress);
            let linked = ms(linked.since(Time::ZERO));
            found.push((name, off(ms(swaps.alone(model)), pcie), off(linked, nvlink)));
        }
        assert_eq!(
            found,
            [
                ("DenseNet-169", -3.0, 29.0),
                ("DenseNet-201", -3.0, -8.0),
                ("Inception-v3", -63.0, -15.0),
                ("EfficientNet", 71.0, 58.0),
                ("ResNet-50", -20.0, -22.0),
                ("ResNet-101", -53.0, -15.0),
                ("ResNet-152", 93.0, -62.0),
                ("Bert-qa", 3.0, -5.0),
            ]
        );
    }

    /// Returns the mean latency in ms of a request with a load from the host while the neighbouring slot swaps another model all
    /// the time.
    fn beside(hardware: &Hardware, swaps: &mut Swaps, own: usize, other: usize) -> f64 {
        let rate = hardware.link.host_gb_per_s * 1e9;
        let takes = |swaps: &Swaps, model| nanos(swaps.takes_ns(model, rate));
        let cycle = swaps.alone(other);
        let (mut sum, mut count) = (0.0, 0.0);
        // At even distances within the other's cycle.
        for phase in 0..40 {
            let mut links = Links::new(2, &[[0, 1]], hardware.link.contention);
            links.keep_progress();
            let mut ends: Vec<End> = Vec::new();
            let begins = Time(1_000_000_000 + cycle.0 * phase / 40);
            let (mut own_began, mut other_next) = (false, Time(1_000_000_000));
            loop {
                // The latest of each slot's predicted ends is valid.
                let end = |slot| ends.iter().rev().find(|end| end.slot == slot).copied();
                let loads = [own_began.then(|| end(0)).flatten(), end(1)];
                let first = loads.iter().flatten().min_by_key(|end| end.at).copied();
                let at = first.map_or(Time::NEVER, |end| end.at);
                let starts = if own_began {
                    other_next
                } else {
                    other_next.min(begins)
                };
                if starts <= at {
                    if starts == begins && !own_began {
                        own_began = true;
                        links.from_host(starts, 0, takes(swaps, own), &mut ends);
                    } else {
                        other_next = Time::NEVER;
                        links.from_host(starts, 1, takes(swaps, other), &mut ends);
                    }
                    continue;
                }
                let end = first.unwrap();
                assert!(links.ends(end.at, end.slot, end.version, &mut ends));
                ends.retain(|other| other.slot != end.slot);
                let progress = links.progress(end.slot).to_vec();
                let model = if end.slot == 0 { own } else { other };
                let executed = progress[0]
                    .at
                    .after(millis(hardware.models[model].execution_ms));
                let done = swaps.finished(model, executed, end.at, &progress);
                if end.slot == 0 {
                    sum += ms(done.since(begins));
                    count += 1.0;
                    break;
                }
                other_next = done;
            }
        }
        sum / count
    }

    /// Torpor Table 3: latency beside a slot on the same PCIe switch that swaps another model, and the deviations of our values,
    /// in tenths of a percent: 6.6 % at most. The contention of links is fitted to this table.
    #[test]
    fn groups_reproduce_table_3() {
        let (hardware, mut swaps) = of(SwapTime::Groups);
        let mut found = Vec::new();
        for (name, other, printed) in [
            ("DenseNet-169", "ResNet-152", 27.0),
            ("DenseNet-169", "Bert-qa", 27.0),
            ("ResNet-152", "DenseNet-169", 31.0),
            ("ResNet-152", "Bert-qa", 43.0),
            ("Bert-qa", "DenseNet-169", 166.0),
            ("Bert-qa", "ResNet-152", 240.0),
        ] {
            let model = |name| hardware.model(name).unwrap();
            let ours = beside(&hardware, &mut swaps, model(name), model(other));
            found.push((name, other, off(ours, printed)));
        }
        assert_eq!(
            found,
            [
                ("DenseNet-169", "ResNet-152", 2.0),
                ("DenseNet-169", "Bert-qa", 2.0),
                ("ResNet-152", "DenseNet-169", 2.0),
                ("ResNet-152", "Bert-qa", -13.0),
                ("Bert-qa", "DenseNet-169", 2.0),
                ("Bert-qa", "ResNet-152", -66.0),
            ]
        );
    }

    /// Without pipelining, copies and execution follow one another; with groups, all but one of each overlap.
    #[test]
    fn groups_save_the_overlap_of_copies_and_execution() {
        let (hardware, whole) = of(SwapTime::Whole);
        let (_, groups) = of(SwapTime::Groups);
        let (_, fitted) = of(SwapTime::Fitted);
        for (model, times) in hardware.models.iter().enumerate() {
            let pinned = ms(whole.alone(model));
            let sum = whole.takes_ns(model, 9.46e9) / MS + times.execution_ms + 1.71;
            assert!(
                (pinned - sum).abs() < 1e-4,
                "{}: {pinned}, {sum}",
                times.name
            );
            let grouped = ms(groups.alone(model));
            let longer = (groups.takes_ns(model, 9.46e9) / MS).max(times.execution_ms);
            assert!(
                grouped > longer && grouped < pinned,
                "{}: {grouped}",
                times.name
            );
            assert_eq!(fitted.alone(model), hardware.swapped_alone(model));
        }
    }

    /// Compares the end of a load that slows down with one computed from each group's arrival.
    #[test]
    fn the_end_is_exact_when_speeds_change() {
        let (hardware, mut swaps) = of(SwapTime::Groups);
        let model = hardware.model("ResNet-50").unwrap();
        let takes = nanos(swaps.takes_ns(model, 9.46e9));
        // A third at full speed, a third at half, the rest at full again.
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
        let third = takes.0 as f64 / 3.0;
        let at = |ns: f64, left: f64| Progress {
            at: Time::ZERO.after(nanos(ns)),
            left,
        };
        let progress = [
            at(0.0, 3.0 * third),
            at(third, 2.0 * third),
            at(3.0 * third, third),
            at(4.0 * third, 0.0),
        ];
        let execution = millis(hardware.models[model].execution_ms);
        let now = progress[3].at;
        let end = swaps.finished(model, Time::ZERO.after(execution), now, &progress);
        let parts = swaps.cuts[model].left.clone();
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let step = ms(execution) / parts.len() as f64;
        let mut done = 0.0_f64;
        for part in parts {
            let copied = 3.0 * third * (1.0 - part);
            let beyond = |from: f64| (copied - from).clamp(0.0, third);
            let arrival = (beyond(0.0) + 2.0 * beyond(third) + beyond(2.0 * third)) / MS;
            done = done.max(arrival) + step;
        }
        let ours = ms(end.since(Time::ZERO));
        assert!((ours - done - 1.71).abs() < 1e-3, "{ours}, {done}");
    }
}
