//! The source of all monitoring of Weir: the catalogue of metrics, Grafana dashboards, Prometheus rules with their
//! tests, and the Kubernetes objects that contain them.
//!
//! | module | content |
//! |---|---|
//! | [`catalogue`] | `metrics.toml`: every metric with type, labels and meaning |
//! | [`page`] | comparison of a program's exported metrics with the catalogue |
//! | [`mod@reference`] | `docs/metrics.md` |
//! | [`grafana`], [`boards`] | the dashboard model, and the dashboards |
//! | [`rules`] | recording rules and alerts, with their tests |
//! | [`objects`] | ConfigMaps, GrafanaDashboards, PrometheusRules, PodMonitors |
//! | [`promql`] | analysis and transformation of queries |
//! | [`queries`] | every query with filled variables, for a run against a Prometheus |
//! | [`promtool`] | Prometheus' own checks |
//! | [`outputs`] | the files generated from all this |
//!
//! Deliberately absent: connections to a running Prometheus or Grafana; everything here is text, generated and committed. Start
//! reading in [`catalogue`].
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
