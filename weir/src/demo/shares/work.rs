//! Work of the pods.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use model_server::Model;

/// Computation time, and pause after it, of `Work::Pauses`.
pub(crate) const PAUSES: Duration = Duration::from_millis(5);

/// Work that a pod computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Kernels,
    Long,
    Graphs,
    Pauses,
    /// The four above, in turn by pod.
    Mixed,
    Model(&'static str),
}

/// A batch of consecutive kernels, computed over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    /// Time of each kernel alone on the whole GPU.
    kernel: Duration,
    count: u32,
    /// Whether one launch starts all kernels.
    is_graph: bool,
    /// Pause after each batch.
    pause: Duration,
}

/// The work as the simulator needs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SimulatedWork {
    /// Time of a batch alone on the whole GPU.
    pub(crate) batch: Duration,
    /// Computation time of a launch.
    pub(crate) launch: Duration,
    pub(crate) pause: Duration,
    /// Model for scaling and interference; `None`: speed is proportional to SMs, without interference.
    pub(crate) model: Option<Model>,
}

const WORKS: [(&str, Work); 5] = [
    ("kernels", Work::Kernels),
    ("long", Work::Long),
    ("graphs", Work::Graphs),
    ("pauses", Work::Pauses),
    ("mixed", Work::Mixed),
];

/// Returns the work of the pod at this index, of the four kinds in turn.
pub(crate) const fn in_turn(at: usize) -> Work {
    WORKS[at % 4].1
}

impl Work {
    const fn shape(self) -> Option<Batch> {
        let plain = Batch {
            kernel: Duration::from_micros(100),
            count: 64,
            is_graph: false,
            pause: Duration::ZERO,
        };
        let of_5_ms = Batch { count: 50, ..plain };
        Some(match self {
            Self::Kernels | Self::Mixed => plain,
            Self::Long => Batch {
                kernel: Duration::from_millis(50),
                count: 1,
                ..plain
            },
            Self::Graphs => Batch {
                is_graph: true,
                ..of_5_ms
            },
            Self::Pauses => Batch {
                pause: PAUSES,
                ..of_5_ms
            },
            Self::Model(_) => return None,
        })
    }

    /// Returns the load program's arguments. Pauses are real time, and so scaled here; kernels are scaled by the GPU.
    pub(crate) fn arguments(self, time: u32) -> Vec<String> {
        let Some(batch) = self.shape() else {
            return vec!["--model".to_owned(), self.to_string()];
        };
        let mut all = vec![
            "--kernel".to_owned(),
            format!("{}us", batch.kernel.as_micros()),
            "--batch".to_owned(),
            batch.count.to_string(),
        ];
        if batch.is_graph {
            all.push("--graph".to_owned());
        }
        if !batch.pause.is_zero() {
            let pause = (batch.pause * time).as_millis();
            all.extend(["--pause".to_owned(), format!("{pause}ms")]);
        }
        all
    }

    /// Returns the work for the simulator; `None` if there is no such model.
    pub(crate) fn simulated(self) -> Option<SimulatedWork> {
        if let Some(batch) = self.shape() {
            let whole = batch.kernel * batch.count;
            return Some(SimulatedWork {
                batch: whole,
                launch: if batch.is_graph { whole } else { batch.kernel },
                pause: batch.pause,
                model: None,
            });
        }
        let Self::Model(name) = self else {
            return None;
        };
        let model = Model::named(name)?;
        let longest = model.kernels.iter().map(|group| group.ns).max()?;
        Some(SimulatedWork {
            batch: Duration::from_nanos(model.kernels_ns()),
            launch: Duration::from_nanos(longest),
            pause: Duration::ZERO,
            model: Some(model),
        })
    }
}

impl fmt::Display for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = WORKS.iter().find(|(_, work)| work == self);
        formatter.write_str(match (self, named) {
            (Self::Model(name), _) | (_, Some((name, _))) => name,
            (_, None) => "",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, work)) = WORKS.iter().find(|(name, _)| *name == text) {
            return Ok(*work);
        }
        let model = Model::names().find(|name| *name == text);
        model.map(Self::Model).ok_or_else(|| {
            let names = WORKS.iter().map(|(name, _)| *name).chain(Model::names());
            format!("allowed: {}", names.collect::<Vec<_>>().join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_arguments_match_the_work() {
        for (work, time, expected) in [
            (Work::Kernels, 1, "--kernel 100us --batch 64"),
            (Work::Long, 2, "--kernel 50000us --batch 1"),
            (Work::Graphs, 1, "--kernel 100us --batch 50 --graph"),
            (Work::Pauses, 4, "--kernel 100us --batch 50 --pause 20ms"),
            (Work::Model("resnet"), 1, "--model resnet"),
        ] {
            assert_eq!(work.arguments(time).join(" "), expected);
        }
        let of = |work: Work| work.simulated().unwrap();
        assert_eq!(of(Work::Graphs).launch, Duration::from_millis(5));
        assert_eq!(of(Work::Pauses).launch, Duration::from_micros(100));
        let resnet = of(Work::Model("resnet"));
        assert_eq!(resnet.batch.as_micros(), 14_011);
        assert!(resnet.launch < Duration::from_micros(81));
    }
}
