//! A slice of a trace, scaled to a load and a span.

use std::time::Duration;

use anyhow::ensure;
use model_server::{Cost, Work};
use policy::{Span, Time};

use super::trace::Trace;

/// Largest number of requests that a demo sends.
const REQUESTS_MAX: usize = 200_000;

/// A request with its due time, work and objective.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// Due time since the start.
    pub(crate) arrival: Duration,
    /// Service time without waiting.
    pub(crate) service: Duration,
    /// Latest answer in time, after its arrival.
    pub(crate) objective: Duration,
    /// Prompt and output size.
    pub(crate) work: Work,
    /// Class under which the request is counted: an index into `classes`.
    pub(crate) class: usize,
}

impl Request {
    /// Returns the request's JSON body.
    pub(crate) fn body(&self) -> String {
        serde_json::json!({"input": self.work.input, "output": self.work.output}).to_string()
    }

    /// Returns the objective in ms for the request's header, at least 1.
    pub(crate) fn budget_ms(&self) -> u64 {
        u64::try_from(self.objective.as_millis()).map_or(u64::MAX, |budget| budget.max(1))
    }
}

/// Requests that the demo sends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Workload {
    /// Requests, sorted by arrival.
    pub(crate) requests: Vec<Request>,
    /// Names of the classes, in order of first appearance.
    pub(crate) classes: Vec<String>,
    /// Time from the first arrival to the last.
    pub(crate) span: Duration,
    /// Cost for the model-servers.
    pub(crate) cost: Cost,
}

impl Workload {
    /// Returns slice number `seed` (from 1) of a trace: as many requests as fill `load × seconds` of service, with arrivals
    /// scaled to `seconds`; the whole trace, in a shorter span, if it holds less. Slices follow one another, and wrap around at
    /// the trace's end.
    pub(crate) fn new(
        trace: &Trace,
        seconds: f64,
        load: f64,
        objective_factor: f64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let service = |at: usize| {
            trace
                .cost
                .service_time(trace.entries[at % trace.entries.len()].work)
        };
        let total: f64 = (0..trace.entries.len())
            .map(|at| service(at).as_secs_f64())
            .sum();
        // A trace that holds less is sent whole, once: the load stays, the span is shorter.
        let wanted = (load * seconds).min(total);
        // Complete rounds through the trace would only take time.
        let mut skip = (wanted * (seed - 1) as f64) % total;
        let mut first = 0;
        while skip > 0.0 {
            skip -= service(first).as_secs_f64();
            first += 1;
        }
        let mut end = first;
        let mut filled = 0.0;
        while filled < wanted && end - first < trace.entries.len() {
            filled += service(end).as_secs_f64();
            end += 1;
        }
        let count = end - first;
        ensure!(
            count >= 2,
            "--load times --seconds is less than two requests of the trace"
        );
        ensure!(
            count <= REQUESTS_MAX,
            "{count} requests are more than {REQUESTS_MAX}"
        );

        let trace_span = trace.entries.last().map_or(0.0, |entry| entry.arrival_s);
        let arrival = |at: usize| {
            let round = (at / trace.entries.len()) as f64;
            trace.entries[at % trace.entries.len()].arrival_s + round * trace_span
        };
        let (from, to) = (arrival(first), arrival(end - 1));
        ensure!(
            to > from,
            "all requests of the slice arrive at the same time"
        );
        // The span follows from the load, since the last request rarely fits exactly.
        let span = filled / load;
        let mut classes: Vec<String> = Vec::new();
        let requests = (first..end)
            .map(|at| {
                let entry = &trace.entries[at % trace.entries.len()];
                let class = classes.iter().position(|class| *class == entry.class);
                let class = class.unwrap_or_else(|| {
                    classes.push(entry.class.clone());
                    classes.len() - 1
                });
                let service = trace.cost.service_time(entry.work);
                Request {
                    arrival: Duration::from_secs_f64((arrival(at) - from) / (to - from) * span),
                    service,
                    objective: entry.objective_ms.map_or_else(
                        || service.mul_f64(objective_factor),
                        |ms| Duration::from_secs_f64(ms / 1e3),
                    ),
                    work: entry.work,
                    class,
                }
            })
            .collect();
        Ok(Self {
            requests,
            classes,
            span: Duration::from_secs_f64(span),
            cost: trace.cost,
        })
    }

    /// Returns at most `count` of the same requests so far apart that they never overlap: each is due `gap` after the earliest
    /// possible end of the one before.
    pub(crate) fn apart(&self, count: usize, gap: Duration) -> Self {
        let mut arrival = Duration::ZERO;
        let mut span = Duration::ZERO;
        let each = self.requests.iter().take(count).map(|request| {
            span = arrival;
            arrival += request.service + gap;
            Request {
                arrival: span,
                ..request.clone()
            }
        });
        let requests = each.collect();
        Self {
            requests,
            classes: self.classes.clone(),
            span,
            cost: self.cost,
        }
    }

    /// Returns the requests for the simulator.
    pub(crate) fn simulated(&self) -> Vec<simulator::instance::Request> {
        let each = self
            .requests
            .iter()
            .map(|request| simulator::instance::Request {
                due: Time::ZERO.after(request.arrival.into()),
                service: request.service.into(),
                budget: Some(Span::from_millis(request.budget_ms())),
                body_bytes: request.body().len() as u64,
            });
        each.collect()
    }

    /// Returns the requests for the simulator of several instances, which have been ready for as long as a slow start takes.
    pub(crate) fn jobs(&self) -> Vec<simulator::routing::Job> {
        let begin = Time::ZERO.after(Span::from_secs(60));
        let each = self.requests.iter().map(|request| simulator::routing::Job {
            due: begin.after(request.arrival.into()),
            service: request.service.into(),
            objective: request.objective.into(),
        });
        each.collect()
    }

    /// Returns the longest objective of any request.
    pub(crate) fn longest_objective(&self) -> Duration {
        self.requests
            .iter()
            .map(|request| request.objective)
            .max()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of service times divided by the span.
    fn load_of(workload: &Workload) -> f64 {
        let service: Duration = workload.requests.iter().map(|own| own.service).sum();
        service.as_secs_f64() / workload.span.as_secs_f64()
    }

    #[test]
    fn a_slice_has_the_requested_load_and_span() {
        let trace = Trace::bundled().unwrap();
        for (seconds, load, seed) in [
            (25.0, 1.0, 1),
            (10.0, 0.5, 3),
            (5.0, 2.0, 40),
            (25.0, 1.0, 999_999),
        ] {
            let workload = Workload::new(&trace, seconds, load, 4.0, seed).unwrap();
            assert!((load_of(&workload) - load).abs() < 1e-6);
            assert!(
                (workload.span.as_secs_f64() - seconds).abs() < 0.5,
                "{:?}",
                workload.span
            );
            assert_eq!(workload.requests[0].arrival, Duration::ZERO);
            assert_eq!(workload.requests.last().unwrap().arrival, workload.span);
            assert!(
                workload
                    .requests
                    .is_sorted_by_key(|request| request.arrival)
            );
            assert!(
                workload
                    .requests
                    .iter()
                    .all(|r| r.objective == r.service.mul_f64(4.0))
            );
        }
    }

    #[test]
    fn separated_requests_do_not_overlap() {
        let trace = Trace::bundled().unwrap();
        let gap = Duration::from_millis(20);
        let apart = Workload::new(&trace, 25.0, 1.0, 4.0, 1)
            .unwrap()
            .apart(50, gap);
        assert_eq!(apart.requests.len(), 50);
        for two in apart.requests.windows(2) {
            assert_eq!(two[0].arrival + two[0].service + gap, two[1].arrival);
        }
        assert_eq!(apart.span, apart.requests[49].arrival);
    }

    #[test]
    fn slices_follow_one_another() {
        let trace = Trace::bundled().unwrap();
        let slice = |seed| Workload::new(&trace, 25.0, 1.0, 4.0, seed).unwrap();
        let (one, two) = (slice(1), slice(2));
        let at = trace
            .entries
            .iter()
            .position(|entry| entry.work == two.requests[0].work)
            .unwrap();
        assert!(
            at.abs_diff(one.requests.len()) <= 1,
            "{at} {}",
            one.requests.len()
        );
    }

    #[test]
    fn a_trace_shorter_than_the_slice_is_sent_whole() {
        let trace = Trace::bundled().unwrap();
        let workload = Workload::new(&trace, 10_000.0, 2.0, 4.0, 1).unwrap();
        assert_eq!(workload.requests.len(), trace.entries.len());
        assert!((load_of(&workload) - 2.0).abs() < 1e-6);
        assert!(workload.span.as_secs_f64() < 100.0);
    }
}
