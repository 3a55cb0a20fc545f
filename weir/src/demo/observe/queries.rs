//! Sends every query once, and determines the first cause in "Why missed".

use dashboards::queries::{Query, Variables, queries};

use super::function::{FUNCTIONS, SHOWN};
use super::prometheus::Prometheus;
use super::report::{Cause, Failure};

/// Interval for rates: fifteen scrapes.
const INTERVAL: &str = "15s";
/// Range for counts over the shown time: the whole demo.
const RANGE: &str = "10m";

/// Variables of dashboards with one function.
pub(super) const fn shown() -> [(&'static str, &'static str); 2] {
    [("namespace", "default"), ("function", SHOWN)]
}

pub(super) const fn variables<'a>(chosen: &'a [(&'a str, &'a str)]) -> Variables<'a> {
    Variables {
        interval: INTERVAL,
        range: RANGE,
        chosen,
    }
}

/// Queries sent, and those that failed or were empty.
#[derive(Debug, Default)]
pub(super) struct QueryResults {
    pub(super) queries: Vec<Query>,
    pub(super) errors: Vec<Failure>,
    pub(super) empty: Vec<Failure>,
}

/// Sends every query of the dashboards and rules once.
pub(super) async fn send(prometheus: &mut Prometheus) -> anyhow::Result<QueryResults> {
    let chosen = shown();
    let mut sent = QueryResults::default();
    for query in queries(&variables(&chosen)) {
        let failure = |why: String| Failure {
            file: query.file.clone(),
            panel: query.panel.clone(),
            expr: query.expr.clone(),
            why,
        };
        match prometheus.query(&query.expr).await? {
            Ok(samples) if samples.is_empty() => sent.empty.push(failure("no series".to_owned())),
            Ok(_) => {}
            Err(why) => sent.errors.push(failure(why)),
        }
        sent.queries.push(query);
    }
    Ok(sent)
}

/// Returns for each function with an expected cause the first cause in "Why missed".
pub(super) async fn causes(prometheus: &mut Prometheus) -> anyhow::Result<Vec<Cause>> {
    let mut causes = Vec::new();
    for function in FUNCTIONS {
        let Some(made) = function.cause else {
            continue;
        };
        let chosen = [("namespace", "default"), ("function", function.name)];
        let all = queries(&variables(&chosen));
        let why = all
            .iter()
            .find(|query| query.file == "weir-function.json" && query.panel == "Why missed");
        let mut named = String::new();
        if let Some(query) = why
            && let Ok(samples) = prometheus.query(&query.expr).await?
            && let Some(first) = samples.first()
        {
            named = first.labels["reason"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
        causes.push(Cause {
            function: function.name,
            made,
            named,
        });
    }
    Ok(causes)
}
