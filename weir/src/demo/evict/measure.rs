//! What the device's ledger shows of moves.

use std::collections::BTreeMap;

use softgpu::ledger::{Entry, Ledger};
use softgpu_wire::ledger::LineKind;

/// Number of the host link's direction to the device, of the one GPU.
const TO_DEVICE: u32 = 0;

/// A stretch of time, in ns since the begin of the ledger.
pub(super) type Stretch = (u64, u64);

/// One process's part of the ledger.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Stretches in which kernels ran.
    pub(super) kernels: Vec<Stretch>,
    /// Copies to and from the device: stretch, and bytes.
    pub(super) to_device: Vec<(Stretch, f64)>,
    pub(super) from_device: Vec<(Stretch, f64)>,
    /// Memory held: stretch, and bytes.
    pub(super) memory: Vec<(Stretch, u64)>,
}

/// Returns the tracks of all processes, by PID.
pub(super) fn tracks(ledger: &Ledger) -> BTreeMap<u32, Track> {
    let mut tracks: BTreeMap<u32, Track> = BTreeMap::new();
    for entry in &ledger.entries {
        let track = tracks
            .entry(ledger.processes[entry.process].pid)
            .or_default();
        let stretch = (entry.from, entry.to);
        match entry.kind {
            LineKind::Sms(_) => track.kernels.push(stretch),
            LineKind::Link(TO_DEVICE) => track.to_device.push((stretch, bytes(entry))),
            LineKind::Link(_) => track.from_device.push((stretch, bytes(entry))),
            LineKind::Memory(_) => track.memory.push((stretch, entry.amount)),
            LineKind::Process(_) => {}
        }
    }
    for track in tracks.values_mut() {
        track.kernels.sort_unstable();
        track.memory.sort_unstable();
        let begin = |own: &(Stretch, f64)| own.0;
        track.to_device.sort_by_key(begin);
        track.from_device.sort_by_key(begin);
    }
    tracks
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn float(number: u64) -> f64 {
    number as f64
}

fn bytes(entry: &Entry) -> f64 {
    float(entry.amount) * float(entry.to - entry.from) / 1e9
}

/// Returns a time in ms.
pub(super) fn ms(ns: u64) -> f64 {
    float(ns) / 1e6
}

/// Returns the total length of stretches, each point of time once, in ns.
fn union(mut stretches: Vec<Stretch>) -> u64 {
    stretches.sort_unstable();
    let (mut sum, mut end) = (0, 0);
    for (from, to) in stretches {
        sum += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    sum
}

impl Track {
    fn within<T>(all: &[(Stretch, T)], span: Stretch) -> impl Iterator<Item = &(Stretch, T)> {
        all.iter()
            .filter(move |((from, to), _)| *from >= span.0 && *to <= span.1)
    }

    /// Returns the times at which the amount of memory changed in a span, with the amounts before and after.
    fn memory_changes(&self, span: Stretch) -> Vec<(u64, u64, u64)> {
        let mut changes = Vec::new();
        for pair in self.memory.windows(2) {
            let [((_, end), before), ((begin, _), after)] = pair else {
                continue;
            };
            if begin == end && (span.0..=span.1).contains(begin) && before != after {
                changes.push((*begin, *before, *after));
            }
        }
        changes
    }

    /// Returns the time of an eviction in a span, in ns: in which the kernel of the hashes ran, something was copied from the device, or
    /// memory was being released, each point of time once. `None` if no memory was released.
    pub(super) fn eviction(&self, span: Stretch) -> Option<Eviction> {
        let released: Vec<_> = self
            .memory_changes(span)
            .into_iter()
            .filter(|(_, before, after)| after < before)
            .collect();
        let (first, last) = (released.first()?.0, released.last()?);
        let mut busy: Vec<Stretch> = Self::within(&self.from_device, span)
            .map(|(stretch, _)| *stretch)
            .collect();
        let kernels = self.kernels.iter();
        busy.extend(kernels.filter(|(from, to)| *from >= span.0 && *to <= span.1));
        busy.push((first, last.0));
        Some(Eviction {
            length: union(busy),
            handles: released.len(),
            left_bytes: last.2,
        })
    }

    /// Returns the restore that begins in a span: from the creation of the first handle to the end of the last copy of `bytes`, scaled.
    pub(super) fn restore(&self, span: Stretch, bytes: u64) -> Option<Restore> {
        let created = self.memory_changes(span);
        let begin = created
            .iter()
            .find(|(_, before, after)| after > before)
            .map(|(at, _, _)| *at)?;
        let mut left = float(bytes);
        let mut end = begin;
        let copies = self.to_device.iter().filter(|(own, _)| own.0 >= begin);
        for ((_, to), copied) in copies {
            if left < 1.0 {
                break;
            }
            left -= copied;
            end = end.max(*to);
        }
        let created_until = created
            .iter()
            .filter(|(at, before, after)| after > before && *at <= end)
            .map(|(at, _, _)| *at)
            .max()?;
        Some(Restore {
            begin,
            created_until,
            end,
        })
    }

    /// Returns which share of the bytes of a restore was there when the first kernel after its begin that reads weights started. The one before reads
    /// the request's input.
    pub(super) fn first_kernel_share(&self, restore: Restore) -> Option<f64> {
        let begins = self.kernels.iter().map(|(from, _)| *from);
        let first = begins.filter(|from| *from >= restore.begin).nth(1)?;
        let (mut before, mut all) = (0.0, 0.0);
        let copies = self.to_device.iter();
        for ((from, to), copied) in
            copies.filter(|(own, _)| own.0 >= restore.begin && own.1 <= restore.end)
        {
            all += copied;
            if *to <= first {
                before += copied;
            } else if *from < first {
                before += copied * float(first - from) / float(to - from);
            }
        }
        (all > 0.0).then_some(before / all)
    }
}

/// An eviction, as the ledger shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Eviction {
    /// Time in ns.
    pub(super) length: u64,
    /// Number of handles released.
    pub(super) handles: usize,
    /// Memory that stayed on the device, in bytes, scaled.
    pub(super) left_bytes: u64,
}

/// Begin and end of a restore, in ns since the begin of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restore {
    pub(super) begin: u64,
    /// Time of the last handle.
    created_until: u64,
    pub(super) end: u64,
}

impl Restore {
    /// Returns its length in ns.
    pub(super) const fn length(self) -> u64 {
        self.end - self.begin
    }

    /// Returns the time from the first to the last handle, in ns.
    pub(super) const fn creation(self) -> u64 {
        self.created_until - self.begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track() -> Track {
        Track {
            // A request, the hashes, and the first kernel after the restore.
            kernels: vec![(0, 50), (110, 120), (555, 560), (560, 600)],
            from_device: vec![((120, 150), 300.0)],
            to_device: vec![
                ((420, 520), 1_000.0),
                ((520, 620), 1_000.0),
                ((700, 710), 9.0),
            ],
            memory: vec![
                ((0, 160), 3_000),
                ((160, 170), 2_000),
                ((170, 400), 1_000),
                ((400, 410), 2_000),
                ((410, 900), 3_000),
            ],
        }
    }

    #[test]
    fn an_eviction_takes_the_time_of_its_parts_without_gaps() {
        // 10 of hashes, 30 of copies, 10 of release; not the gap before it.
        let eviction = Eviction {
            length: 50,
            handles: 2,
            left_bytes: 1_000,
        };
        assert_eq!(track().eviction((100, 200)), Some(eviction));
        assert_eq!(track().eviction((0, 100)), None);
    }

    #[test]
    fn a_restore_lasts_from_its_first_handle_to_its_last_byte() {
        let restore = track().restore((300, 900), 2_000).unwrap();
        assert_eq!(
            restore,
            Restore {
                begin: 400,
                created_until: 410,
                end: 620
            }
        );
        // The kernel at 560 finds the first copy, and 40 % of the second.
        let share = track().first_kernel_share(restore).unwrap();
        assert!((share - 0.7).abs() < 1e-9, "{share}");
        assert_eq!(track().restore((0, 300), 2_000), None);
    }

    #[test]
    fn overlapping_stretches_count_once() {
        assert_eq!(union(vec![(5, 9), (0, 3), (2, 6), (20, 21)]), 10);
        assert_eq!(union(Vec::new()), 0);
    }
}
