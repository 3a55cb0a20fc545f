//! Weir's Grafana dashboards.

mod cost;
mod fleet;
mod function;
mod health;
mod residency;
mod routing;
mod sharing;
mod slots;

use crate::grafana::Board;

/// Returns all dashboards, in the order of their use.
#[must_use]
pub fn boards() -> Vec<Board> {
    vec![
        fleet::board(),
        function::board(),
        slots::board(),
        sharing::board(),
        residency::board(),
        routing::board(),
        health::board(),
        cost::board(),
    ]
}

/// Selector of series that each function has, with an objective or without.
const REQUESTS: &str = "{__name__=~\"weir_(function_)?requests_total\"}";

/// Returns a selector of Weir's own targets, with other matchers.
fn own(metric: &str, matchers: &str) -> String {
    let comma = if matchers.is_empty() { "" } else { "," };
    format!("{metric}{{{matchers}{comma}job=~\"$job\",instance=~\"$instance\"}}")
}

/// Returns a query of a counter's rate per second, summed by labels.
fn rate_by(labels: &str, metric: &str, matchers: &str) -> String {
    let series = own(metric, matchers);
    format!("sum by ({labels}) (rate({series}[$__rate_interval]))")
}

/// Returns a query of a histogram's quantile, by labels.
fn quantile_by(quantile: f64, labels: &str, metric: &str, matchers: &str) -> String {
    let comma = if labels.is_empty() { "" } else { ", " };
    let buckets = rate_by(
        &format!("le{comma}{labels}"),
        &format!("{metric}_bucket"),
        matchers,
    );
    format!("histogram_quantile({quantile}, {buckets})")
}

/// Returns a query of the mean of a histogram's observations, by labels.
fn mean_by(labels: &str, metric: &str, matchers: &str) -> String {
    let part = |suffix| rate_by(labels, &format!("{metric}_{suffix}"), matchers);
    format!("{} / {}", part("sum"), part("count"))
}
