//! `docs/metrics.md`, generated from the catalogue.

use std::fmt::Write as _;

use crate::catalogue::{Metric, Program};

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo run -p dashboards -- write` from dashboards/metrics.toml. -->

For administrators: every metric that Weir's own programs export, in Prometheus' text format, with a useful query for each.

Tests compare names, types, labels and help texts with the running programs. Every counter starts at 0 with its process.

- `namespace` is the function's namespace, so scrape with `honorLabels: true`, as the monitors of `manifests/components/monitoring` do, except for
  queue-proxies: their pods are controlled by users, so the namespace is taken from the target.
- `function` is `weir.dev/function`, or else the Knative Service's name, or else the configuration's: a roll-out continues its series.
- Attainment is `weir_function_requests_*` where activator-ext is in the path, otherwise `weir_requests_*`. Never add the two: the recording
  rules `namespace_function:weir_requests_judged:increase5m` and similar ones choose.
- A request is judged once: in time, or missed for exactly one `reason`. `weir_requests_total{outcome}` counts all requests and is not the
  denominator.
- Knative's own instruments keep their names and are exported only where `request-metrics-protocol` enables them; see
  [the contract](queue-proxy-contract.md).

## Reasons of missed requests

| `reason` | the request |
|---|---|
| `cold-start` | waited for an instance while none served |
| `queue` | waited for its turn, here or at an earlier hop |
| `lease` | waited for the lease of its slot |
| `load` | waited for its model to be loaded |
| `gate` | had kernels that waited for tokens |
| `execution` | computed for longer than the objective, or this was its longest part |
| `refused` | was refused because the queue was full, or because the revision went away |
| `shed` | was late, and the revision sheds late requests |
| `timeout` | was ended by a timeout, or its client left later than the objective |
| `failed` | was answered with a server error, or the application broke off |

A late response has the reason of its longest part; of equal parts, the first in this order. Unknown parts are not guessed.
";

/// Returns the text of `docs/metrics.md`.
#[must_use]
pub fn markdown(catalogue: &[Metric]) -> String {
    let mut text = HEAD.to_owned();
    for program in Program::ALL {
        let (name, port) = (program.name(), program.port());
        let _infallible = write!(
            text,
            "\n## {name}, port {port}\n\n| metric | type, unit | labels | meaning | query |\n|---|---|---|---|---|\n"
        );
        for metric in catalogue
            .iter()
            .filter(|own| own.programs.contains(&program))
        {
            let labels: Vec<_> = metric.labels.iter().map(String::as_str).collect();
            let mut labels = labels.join(" ");
            if metric.pod {
                labels.push_str(" (pod)");
            }
            let only = metric.only.as_deref().map(|only| format!(" Only {only}."));
            let _infallible = writeln!(
                text,
                "| `{}` | {}, {} | {labels} | {}{} | `{}` |",
                metric.name,
                metric.kind.name(),
                metric.unit,
                metric.meaning,
                only.unwrap_or_default(),
                metric.query.replace('|', "\\|"),
            );
        }
    }
    text.push_str(
        "\n`(pod)`: with `[metrics] pods = true` in the agent's configuration these have the label `pod`, and a pod's series ends with the pod. \
         Without it, one series covers all pods, including those that have ended.\n",
    );
    text
}
