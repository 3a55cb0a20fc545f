//! The load: a trace or a made-up workload, read once for all runs, and what it says of each function.

use policy::{Span, Time};
use thiserror::Error;

use crate::traces::{Arrival, FunctionInfo, TraceError, Work, Workload};

/// Most requests of a window.
pub const REQUESTS_MAX: usize = 20_000_000;

/// Which part of a trace is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From when on, from the trace's own zero.
    pub from: Time,
    /// For how long.
    pub length: Span,
    /// At most so many requests of it.
    pub most: usize,
}

impl Default for Window {
    /// All of it.
    fn default() -> Self {
        Self {
            from: Time::ZERO,
            length: Span(u64::MAX),
            most: REQUESTS_MAX,
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// From the window's begin.
    pub at: Time,
    /// Its own objective; zero: it has none.
    pub objective: Span,
    /// What the trace says that it asks for.
    pub work: Work,
    /// Place in [`Load::functions`].
    pub function: u32,
}

/// What the window says of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// What the trace says.
    pub info: FunctionInfo,
    /// Requests in the window.
    pub requests: u64,
    /// Those of them that say how long they run, and how long: sum in ns, and sum of squares in ms².
    pub timed: (u64, u128, f64),
    /// Those of them that say tokens, and how many, of prompts and of answers.
    pub tokens: (u64, [u64; 2]),
    /// The longest objective that a request of it states.
    pub objective: Span,
}

impl Seen {
    /// The mean service time, if any is stated.
    #[must_use]
    pub fn service(&self) -> Option<Span> {
        let (count, sum, _) = self.timed;
        let mean = sum.checked_div(u128::from(count))?;
        u64::try_from(mean).ok().map(Span)
    }

    /// Standard deviation of service times as a part of their mean.
    #[must_use]
    pub fn varies(&self) -> Option<f64> {
        let (count, _, squares) = self.timed;
        let mean = self.service()?.as_secs_f64() * 1e3;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let variance = squares / count as f64 - mean * mean;
        (mean > 0.0).then(|| libm::sqrt(variance.max(0.0)) / mean)
    }

    /// Mean tokens of prompt and answer, if they are stated.
    #[must_use]
    pub fn mean_tokens(&self) -> Option<[f64; 2]> {
        let (count, sums) = self.tokens;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let mean = sums.map(|sum| sum as f64 / count as f64);
        (count > 0).then_some(mean)
    }
}

/// Why a load cannot be read.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Of the trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is too much of it.
    #[error(
        "there are more than {REQUESTS_MAX} requests: at most that many are kept, of all seeds that draw arrivals of their own, so a \
         shorter window (--seconds) or fewer --seeds are needed"
    )]
    TooMany,
    /// There is nothing of it.
    #[error("there is no request in the window")]
    Empty,
    /// It was told to stop.
    #[error("stopped while the trace was read")]
    Stopped,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// All functions of the trace.
    pub functions: Vec<Seen>,
    /// In the order of arrival.
    pub requests: Vec<Request>,
    /// To the last arrival, or as long as it was made up to be.
    pub length: Span,
}

impl Load {
    /// Reads a window of a workload. `watch` is told requests now and then, and stops it by false.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn read<A>(
        workload: Workload<A>,
        window: Window,
        watch: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, LoadError>
    where
        A: Iterator<Item = Result<Arrival, TraceError>>,
    {
        let seen = |info| Seen {
            info,
            requests: 0,
            timed: (0, 0, 0.0),
            tokens: (0, [0; 2]),
            objective: Span::ZERO,
        };
        let mut load = Self {
            functions: workload.functions.into_iter().map(seen).collect(),
            requests: Vec::new(),
            length: Span::ZERO,
        };
        let to = window.from.after(window.length);
        for (number, arrival) in workload.arrivals.enumerate() {
            let arrival = arrival?;
            if arrival.at >= to {
                break;
            }
            if number % 65_536 == 65_535 && !watch(number + 1) {
                return Err(LoadError::Stopped);
            }
            if arrival.at >= window.from {
                if load.requests.len() >= window.most {
                    return Err(LoadError::TooMany);
                }
                load.add(&arrival, window.from);
            }
        }
        let last = load.requests.last().ok_or(LoadError::Empty)?;
        load.length = last.at.since(Time::ZERO);
        Ok(load)
    }

    fn add(&mut self, arrival: &Arrival, from: Time) {
        let objective = arrival.objective.unwrap_or(Span::ZERO);
        self.requests.push(Request {
            at: Time(arrival.at.since(from).0),
            objective,
            work: arrival.work,
            function: arrival.function,
        });
        if let Some(own) = self.functions.get_mut(arrival.function as usize) {
            own.requests += 1;
            own.objective = own.objective.max(objective);
            match arrival.work {
                Work::Unstated => {}
                Work::Service(span) => {
                    let ms = span.as_secs_f64() * 1e3;
                    own.timed.0 += 1;
                    own.timed.1 += u128::from(span.0);
                    own.timed.2 += ms * ms;
                }
                Work::Tokens { input, output } => {
                    own.tokens.0 += 1;
                    own.tokens.1[0] += u64::from(input);
                    own.tokens.1[1] += u64::from(output);
                }
            }
        }
    }

    /// Functions that are called.
    #[must_use]
    pub fn called(&self) -> usize {
        self.functions.iter().filter(|own| own.requests > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Streams;
    use crate::traces::{Options, Source, open};

    const TRACE: &str = "arrival_s,function,service_ms,objective_ms,input_tokens,output_tokens\n\
                         0.5,a,10,,,\n1.5,b,,40,,\n2.0,a,30,,,\n4.0,c,,,100,20\n";

    fn read(window: Window) -> Result<Load, LoadError> {
        let source = Source::bytes("t", TRACE.as_bytes());
        let workload = open(&source, &Options::new(Streams::new("t", 1))).unwrap();
        Load::read(workload, window, &mut |_| true)
    }

    #[test]
    fn what_a_trace_says_is_summed_up_by_function() {
        let load = read(Window::default()).unwrap();
        let [a, b, c] = load.functions.as_slice() else {
            panic!("{load:?}")
        };
        assert_eq!(a.service(), Some(Span::from_millis(20)));
        assert!((a.varies().unwrap() - 0.5).abs() < 1e-9);
        assert_eq!((b.service(), b.objective), (None, Span::from_millis(40)));
        assert_eq!(c.mean_tokens(), Some([100.0, 20.0]));
        assert_eq!((load.called(), load.length), (3, Span::from_secs(4)));
    }

    #[test]
    fn a_window_begins_at_its_own_zero() {
        let window = Window {
            from: Time(1_000_000_000),
            length: Span::from_secs(2),
            ..Window::default()
        };
        let load = read(window).unwrap();
        let at: Vec<_> = load.requests.iter().map(|request| request.at.0).collect();
        assert_eq!(at, [500_000_000, 1_000_000_000]);
        assert_eq!(load.called(), 2);
        let from = Time(9_000_000_000);
        let length = Span::from_secs(1);
        let none = read(Window {
            from,
            length,
            ..Window::default()
        });
        assert!(matches!(none, Err(LoadError::Empty)));
        for (most, fits) in [(4, true), (3, false)] {
            let window = Window {
                most,
                ..Window::default()
            };
            assert_eq!(read(window).is_ok(), fits, "{most}");
        }
    }
}
