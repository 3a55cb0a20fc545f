//! The load: a trace or a synthetic workload, read once for all runs, with statistics for each function.

use policy::{Span, Time};
use thiserror::Error;

use crate::traces::{Arrival, FunctionInfo, TraceError, Work, Workload};

/// Largest number of requests in a window.
pub const REQUESTS_MAX: usize = 20_000_000;

/// Part of a trace that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start of the window, from the trace's own zero.
    pub from: Time,
    /// Length of the window.
    pub length: Span,
    /// Largest number of requests in the window.
    pub most: usize,
}

impl Default for Window {
    /// Returns a window that contains the whole trace, up to [`REQUESTS_MAX`] requests.
    fn default() -> Self {
        Self {
            from: Time::ZERO,
            length: Span(u64::MAX),
            most: REQUESTS_MAX,
        }
    }
}

/// A request of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival time, from the start of the window.
    pub at: Time,
    /// Objective of the request; zero if it has none of its own.
    pub objective: Span,
    /// Work as stated by the trace.
    pub work: Work,
    /// Index into [`Load::functions`].
    pub function: u32,
}

/// Statistics of a function in the window.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionLoad {
    /// Properties stated by the trace.
    pub info: FunctionInfo,
    /// Number of requests in the window.
    pub requests: u64,
    /// Number of requests with a service time, the sum of these times in ns, and the sum of their squares in ms².
    pub timed: (u64, u128, f64),
    /// Number of requests with tokens, and the sums of tokens of prompts and of answers.
    pub tokens: (u64, [u64; 2]),
    /// Longest objective that one of the requests states; zero if none does.
    pub objective: Span,
}

impl FunctionLoad {
    /// Returns the mean service time; `None` if no request has one.
    #[must_use]
    pub fn service(&self) -> Option<Span> {
        let (count, sum, _) = self.timed;
        let mean = sum.checked_div(u128::from(count))?;
        u64::try_from(mean).ok().map(Span)
    }

    /// Returns the coefficient of variation of service times.
    #[must_use]
    pub fn varies(&self) -> Option<f64> {
        let (count, _, squares) = self.timed;
        let mean = self.service()?.as_secs_f64() * 1e3;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let variance = squares / count as f64 - mean * mean;
        (mean > 0.0).then(|| libm::sqrt(variance.max(0.0)) / mean)
    }

    /// Returns the mean numbers of tokens of prompt and answer; `None` if no request has them.
    #[must_use]
    pub fn mean_tokens(&self) -> Option<[f64; 2]> {
        let (count, sums) = self.tokens;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let mean = sums.map(|sum| sum as f64 / count as f64);
        (count > 0).then_some(mean)
    }
}

/// Error in reading a load.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The window contains too many requests.
    #[error(
        "there are more than {REQUESTS_MAX} requests, the largest number kept for all seeds that draw their own arrivals: use a \
         shorter window (--seconds) or fewer --seeds"
    )]
    TooMany,
    /// The window contains no request.
    #[error("there is no request in the window")]
    Empty,
    /// The caller interrupted reading.
    #[error("stopped while the trace was read")]
    Stopped,
}

/// Requests of a window, with their functions; see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// All functions of the trace, including those without requests in the window.
    pub functions: Vec<FunctionLoad>,
    /// Requests in the order of arrival.
    pub requests: Vec<Request>,
    /// Time until the last arrival, or the full length of a synthetic workload.
    pub length: Span,
}

impl Load {
    /// Reads a window of a workload. `watch` is called with the number of requests every 65,536 requests, and stops reading by
    /// returning false.
    ///
    /// # Errors
    /// Returns [`LoadError`] if the trace is invalid, the window has too many requests or none, or `watch` stops reading.
    pub fn read<A>(
        workload: Workload<A>,
        window: Window,
        watch: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, LoadError>
    where
        A: Iterator<Item = Result<Arrival, TraceError>>,
    {
        let unloaded = |info| FunctionLoad {
            info,
            requests: 0,
            timed: (0, 0, 0.0),
            tokens: (0, [0; 2]),
            objective: Span::ZERO,
        };
        let mut load = Self {
            functions: workload.functions.into_iter().map(unloaded).collect(),
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

    /// Returns the number of functions with requests in the window.
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
    fn a_trace_is_summarized_by_function() {
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
