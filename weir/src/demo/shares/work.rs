//! What pods compute.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use model_server::Model;

/// How long a caller that pauses computes, and then pauses.
pub(crate) const PAUSES: Duration = Duration::from_millis(5);

/// What a pod computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Kernels,
    Long,
    Graphs,
    Pauses,
    /// The four above, in turn.
    Mixed,
    Model(&'static str),
}

/// What a pod computes, over and over: kernels one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    /// How long each takes alone on the whole GPU.
    kernel: Duration,
    count: u32,
    /// One launch for all.
    is_graph: bool,
    /// After each batch.
    pause: Duration,
}

/// The same, as far as a simulation has use for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    /// How long a batch takes alone on the whole GPU.
    pub(crate) batch: Duration,
    /// How long what a launch computes.
    pub(crate) launch: Duration,
    pub(crate) pause: Duration,
    /// Whose law and interference it has; none: twice the SMs, twice the speed, and nobody is in the way.
    pub(crate) model: Option<Model>,
}

const WORKS: [(&str, Work); 5] = [
    ("kernels", Work::Kernels),
    ("long", Work::Long),
    ("graphs", Work::Graphs),
    ("pauses", Work::Pauses),
    ("mixed", Work::Mixed),
];

/// The so manieth of the four kinds.
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

    /// The load program's arguments. Pauses are real time, and so scaled here; kernels are scaled by the GPU.
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

    /// For a simulation; `None`: there is no such model.
    pub(crate) fn told(self) -> Option<Told> {
        if let Some(batch) = self.shape() {
            let whole = batch.kernel * batch.count;
            return Some(Told {
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
        Some(Told {
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
    fn works_are_told_to_the_load_as_they_are() {
        for (work, time, told) in [
            (Work::Kernels, 1, "--kernel 100us --batch 64"),
            (Work::Long, 2, "--kernel 50000us --batch 1"),
            (Work::Graphs, 1, "--kernel 100us --batch 50 --graph"),
            (Work::Pauses, 4, "--kernel 100us --batch 50 --pause 20ms"),
            (Work::Model("resnet"), 1, "--model resnet"),
        ] {
            assert_eq!(work.arguments(time).join(" "), told);
        }
        let of = |work: Work| work.told().unwrap();
        assert_eq!(of(Work::Graphs).launch, Duration::from_millis(5));
        assert_eq!(of(Work::Pauses).launch, Duration::from_micros(100));
        let resnet = of(Work::Model("resnet"));
        assert_eq!(resnet.batch.as_micros(), 14_011);
        assert!(resnet.launch < Duration::from_micros(81));
    }
}
