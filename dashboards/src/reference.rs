//! `docs/metrics.md`, written from the catalogue.

use std::fmt::Write as _;

use crate::catalogue::{Metric, Program};

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo run -p dashboards -- write` from dashboards/metrics.toml. -->

Every metric that Weir's own programs export, in Prometheus' text format. Names, types, labels and help texts are compared with the
running programs by tests. Every counter starts at 0 with its process.

- `namespace` is the function's namespace, so scrape with `honorLabels: true` (the monitors of `manifests/components/monitoring` do). Not
  queue-proxies: a pod is its user's, and its namespace is the target's.
- `function` is `weir.dev/function`, else the Knative Service's name, else the configuration's: a roll-out continues its series.
- Attainment is `weir_function_requests_*` where activator-ext is in the path, else `weir_requests_*`. Never add the two: the recording
  rules `namespace_function:weir_requests_judged:increase5m` and their like choose.
- A request is judged once: in time, or missed for exactly one `reason`. `weir_requests_total{outcome}` counts all requests and is no
  denominator.
- Knative's own instruments keep their names and come only when `request-metrics-protocol` asks for them; see
  [the contract](queue-proxy-contract.md).

## Reasons of missed requests

| `reason` | the request |
|---|---|
| `cold-start` | waited for an instance while none served |
| `queue` | waited for its turn, here or at an earlier hop |
| `lease` | waited for the lease of its slot |
| `load` | waited for its model |
| `gate` | had kernels that waited for tokens |
| `execution` | computed for longer than the objective, or this was its longest part |
| `refused` | found the queue full |
| `shed` | was late, and the revision sheds late requests |
| `timeout` | was ended by a timeout, or its client left later than the objective |
| `failed` | was answered with a server error, or its application broke off |

A late answer has the reason of its longest part; of equal ones the first in this order. Parts that are not known are not guessed.
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
        "\n`(pod)`: with `[metrics] pods = true` in the agent's configuration these have the label `pod`, and a pod's series ends with it. \
         Without, one series has what all pods have used, those that are gone included.\n",
    );
    text
}
