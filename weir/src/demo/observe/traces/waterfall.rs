//! The spans of one request, checked for consistency and drawn.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use serde::Serialize;

use super::receiver::{ProgramSpan, text, value};

/// Columns of a bar for the whole request.
const BAR: f64 = 48.0;

/// A request's spans: its root first, then children sorted by start, each after its parent.
#[derive(Debug, Clone, Serialize)]
pub(in super::super) struct Waterfall {
    trace_id: String,
    /// Knative Service of the pod which answered it.
    function: String,
    objective_seconds: f64,
    response_seconds: f64,
    /// Reason of the miss; empty if the request was in time.
    reason: String,
    parts: Parts,
    spans: Vec<Row>,
}

/// Breakdown of a request's time, in seconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Parts {
    /// Time held by activator-ext until it had an instance.
    hold: f64,
    /// Time in transit between activator-ext and the pod, both ways.
    way: f64,
    /// Time in the pod's queue.
    queue: f64,
    /// Time at the user container.
    execution: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    program: String,
    name: String,
    depth: usize,
    /// Start since the request's arrival, in seconds.
    start_seconds: f64,
    duration_seconds: f64,
}

/// Spans of a trace, and its root among them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace<'a> {
    root: &'a ProgramSpan,
    all: &'a [ProgramSpan],
}

impl Waterfall {
    /// Returns the traces with complete spans.
    pub(super) fn complete(spans: &HashMap<Vec<u8>, Vec<ProgramSpan>>) -> Vec<Trace<'_>> {
        let traces = spans.values().filter_map(|all| {
            let root = all.iter().find(|own| own.span.parent_span_id.is_empty())?;
            Some(Trace { root, all })
        });
        traces.filter(Trace::is_complete).collect()
    }

    /// Returns the waterfall of the request with the response latest after its objective.
    ///
    /// # Errors
    /// Returns an error if a trace has several roots, a span without its parent, or a child outside of its parent; if no request
    /// missed its objective; or if the parts of the response differ from it by more than 1 %.
    pub(super) fn worst(traces: Vec<Trace<'_>>) -> anyhow::Result<Self> {
        for trace in &traces {
            trace.check()?;
        }
        let missed = traces.into_iter().filter(|trace| trace.reason().is_some());
        let worst = missed.max_by(|a, b| a.lateness().total_cmp(&b.lateness()));
        let own = worst
            .context("no request missed its objective")?
            .waterfall();
        let Parts {
            hold,
            way,
            queue,
            execution,
        } = own.parts;
        let sum = hold + way + queue + execution;
        ensure!(
            (sum - own.response_seconds).abs() <= own.response_seconds / 100.0,
            "trace {}: its parts are {sum} s, and its response {} s",
            own.trace_id,
            own.response_seconds
        );
        Ok(own)
    }

    /// Returns the waterfall as text for a terminal.
    pub(in super::super) fn text(&self) -> String {
        let Parts {
            hold,
            way,
            queue,
            execution,
        } = self.parts;
        let mut text = format!(
            "\nThe worst request: {} answered after {:.1} ms, objective {:.0} ms, missed for {} (trace {})\n  held {:.1} ms, on the way {:.1} ms, \
             in the pod's queue {:.1} ms, at the application {:.1} ms\n\n",
            self.function,
            self.response_seconds * 1e3,
            self.objective_seconds * 1e3,
            self.reason,
            self.trace_id,
            hold * 1e3,
            way * 1e3,
            queue * 1e3,
            execution * 1e3,
        );
        for row in &self.spans {
            let column = |seconds: f64| seconds / self.response_seconds * BAR;
            let begin = column(row.start_seconds).floor();
            let length = (column(row.start_seconds + row.duration_seconds).ceil() - begin).max(1.0);
            let bar = " ".repeat(columns(begin)) + &"█".repeat(columns(length));
            let name = format!("{}{}", "  ".repeat(row.depth), row.name);
            // Writing to a string cannot fail.
            let _written = writeln!(
                text,
                "  {:<12} {name:<30} {bar:<width$} {:>9.1} ms",
                row.program,
                row.duration_seconds * 1e3,
                width = columns(BAR) + 1,
            );
        }
        text
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the width of a bar"
)]
fn columns(count: f64) -> usize {
    count.clamp(0.0, BAR) as usize
}

impl<'a> Trace<'a> {
    /// Returns whether all spans have arrived: a program exports a request's server span last, and each answer to the root's
    /// program came from a pod with one.
    fn is_complete(&self) -> bool {
        let mut answered = self.all.iter().filter(|own| {
            let attributes = &own.span.attributes;
            own.program == self.root.program
                && own.span.span_id != self.root.span.span_id
                && value(attributes, "http.response.status_code").is_some()
        });
        answered.all(|client| self.children(client).next().is_some())
    }

    fn children(&self, of: &'a ProgramSpan) -> impl Iterator<Item = &'a ProgramSpan> {
        let id = &of.span.span_id;
        let all = self.all.iter();
        all.filter(move |own| own.span.parent_span_id == *id)
    }

    /// Checks that each span but the root has its parent in the trace and is within its time.
    fn check(&self) -> anyhow::Result<()> {
        let id = hex(&self.root.span.trace_id);
        let roots = self
            .all
            .iter()
            .filter(|own| own.span.parent_span_id.is_empty());
        ensure!(roots.count() == 1, "trace {id}: more than one root");
        for own in self.all {
            if own.span.parent_span_id.is_empty() {
                continue;
            }
            let parent = self
                .all
                .iter()
                .find(|it| it.span.span_id == own.span.parent_span_id);
            let name = &own.span.name;
            let parent = parent.with_context(|| format!("trace {id}: {name} has no parent"))?;
            let is_within = own.span.start_time_unix_nano >= parent.span.start_time_unix_nano
                && own.span.end_time_unix_nano <= parent.span.end_time_unix_nano;
            ensure!(
                is_within,
                "trace {id}: {name} is not within {}",
                parent.span.name
            );
        }
        Ok(())
    }

    /// Returns why the request missed its objective, if it did.
    fn reason(&self) -> Option<String> {
        Some(text(&self.root.span.attributes, "weir.slo.reason")).filter(|it| !it.is_empty())
    }

    fn objective(&self) -> f64 {
        match value(&self.root.span.attributes, "weir.slo.objective") {
            Some(Value::DoubleValue(seconds)) => *seconds,
            _ => 0.0,
        }
    }

    fn lateness(&self) -> f64 {
        seconds(self.root) - self.objective()
    }

    fn waterfall(&self) -> Waterfall {
        let mut spans = Vec::new();
        self.draw(self.root, 0, &mut spans);
        let named = |end: &str| {
            let own = self.all.iter().filter(|own| own.span.name.ends_with(end));
            own.map(seconds).sum::<f64>()
        };
        let client = |program: &str| {
            let own = self
                .all
                .iter()
                .filter(|own| own.program == program && own.span.name.starts_with("HTTP "));
            own.map(seconds).sum::<f64>()
        };
        let pod = self.all.iter().find(|own| own.program != self.root.program);
        let execution = pod.map_or(0.0, |pod| client(&pod.program));
        let (hold, queue) = (named("throttler"), named("queueproxy.wait"));
        Waterfall {
            trace_id: hex(&self.root.span.trace_id),
            function: pod.map(|pod| pod.service.clone()).unwrap_or_default(),
            objective_seconds: self.objective(),
            response_seconds: seconds(self.root),
            reason: self.reason().unwrap_or_default(),
            parts: Parts {
                hold,
                way: (client(&self.root.program) - queue - execution).max(0.0),
                queue,
                execution,
            },
            spans,
        }
    }

    fn draw(&self, own: &'a ProgramSpan, depth: usize, rows: &mut Vec<Row>) {
        rows.push(Row {
            program: own.program.clone(),
            name: own.span.name.clone(),
            depth,
            start_seconds: nanos(
                own.span
                    .start_time_unix_nano
                    .saturating_sub(self.root.span.start_time_unix_nano),
            ),
            duration_seconds: seconds(own),
        });
        let mut children: Vec<_> = self.children(own).collect();
        // Of two spans with the same start, the shorter is the earlier part.
        children.sort_by_key(|it| (it.span.start_time_unix_nano, it.span.end_time_unix_nano));
        for child in children {
            self.draw(child, depth + 1, rows);
        }
    }
}

fn seconds(own: &ProgramSpan) -> f64 {
    let span = &own.span;
    nanos(
        span.end_time_unix_nano
            .saturating_sub(span.start_time_unix_nano),
    )
}

#[expect(clippy::cast_precision_loss, reason = "of durations, exact to 52 days")]
fn nanos(count: u64) -> f64 {
    count as f64 / 1e9
}

fn hex(id: &[u8]) -> String {
    // Writing to a string cannot fail.
    id.iter().fold(String::new(), |mut text, byte| {
        let _written = write!(text, "{byte:02x}");
        text
    })
}
