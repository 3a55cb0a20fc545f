//! The one source of what operators look at: the catalogue of metrics, Grafana dashboards, Prometheus rules with their tests, and the
//! Kubernetes objects that carry them.
//!
//! | module | what |
//! |---|---|
//! | [`catalogue`] | `metrics.toml`: every metric with type, labels and meaning |
//! | [`page`] | a program's page of metrics held against the catalogue |
//! | [`mod@reference`] | `docs/metrics.md` |
//! | [`grafana`], [`boards`] | the dashboard model, and the dashboards |
//! | [`rules`] | recording rules and alerts, with their tests |
//! | [`objects`] | ConfigMaps, GrafanaDashboards, PrometheusRules, PodMonitors |
//! | [`promql`] | queries taken apart |
//! | [`queries`] | every query, filled in, for a run against a Prometheus |
//! | [`promtool`] | Prometheus' own checks |
//! | [`outputs`] | the files that are written from all this |
#![forbid(unsafe_code)]

pub mod boards;
pub mod catalogue;
pub mod grafana;
pub mod objects;
#[cfg(feature = "promql")]
pub mod outputs;
pub mod page;
#[cfg(feature = "promql")]
pub mod promql;
pub mod promtool;
pub mod queries;
pub mod reference;
pub mod rules;
