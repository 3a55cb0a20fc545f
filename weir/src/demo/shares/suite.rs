//! Runs the measurements of the README, one after the other.
//!
//! | group | measurement |
//! |---|---|
//! | `quotas` | 10:90, 30:70 and 20:30:50 with each work; with `pauses` the first pod pauses and the others do not; with rule weir, paper, reactive-bucket |
//! | `elastic` | request 0.1 and 0.5, limit 1: both compute; the first is idle for 3 s of 10; the second is |
//! | `debt` | a pod with limit 0.1 launches one kernel of 5 s; by Weir's rule for six times as long |
//! | `S14` | ResNet with quotas of 20 to 100 %: throughput is proportional |
//! | `S17` | ResNet 50–80 % and RNNT 50–50 %, alone and together, with 24 % of the SMs each and with all |
//! | `pack` | the eight pods of FaST-GShare 5.4, with rule weir and paper |
//! | `S01`–`S03` | one racing pod against eight of 12 %: softgpu was fitted to these, so they check softgpu and are no result |

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

use super::plan::{Plan, Pod, Rule, Work, pods};
use super::report::{self, Json, allowed, error, new_table, percent, rate};
use super::{Outcome, measured, print};

/// A measurement of the suite.
#[derive(Debug)]
struct Case {
    group: &'static str,
    what: String,
    rule: Rule,
    pods: Vec<Pod>,
    part: &'static str,
}

#[derive(Debug, Serialize)]
struct CaseJson {
    group: &'static str,
    what: String,
    #[serde(flatten)]
    outcome: Json,
}

/// Runs all measurements. Returns whether one was disturbed or failed; a failed one is reported, and the others are still run.
pub(super) async fn run(plan: &Plan, is_json: bool) -> anyhow::Result<bool> {
    let cases = cases(plan.seconds)?;
    let (mut rows, mut all, mut is_disturbed) = (Vec::new(), Vec::new(), false);
    let count = cases.len();
    for (number, case) in cases.into_iter().enumerate() {
        let name = format!("{} {}, rule {}", case.group, case.what, case.rule.name());
        if std::io::stderr().is_terminal() {
            print_line(&format!("{}/{count} {name}", number + 1));
        }
        let own = Plan {
            pods: case.pods,
            rule: case.rule,
            part: case.part,
            // Until the pod's debt is paid back, which the other rules do not wait for.
            seconds: if case.group == "debt" && case.rule == Rule::Weir {
                plan.seconds * 6.0
            } else {
                plan.seconds
            },
            ..plan.clone()
        };
        match measured(&own).await {
            Ok(outcome) => {
                is_disturbed |= outcome.disturbed.is_some();
                rows.push(row(case.group, &case.what, &outcome));
                all.push(CaseJson {
                    group: case.group,
                    what: case.what,
                    outcome: report::json(&outcome),
                });
            }
            Err(error) => {
                is_disturbed = true;
                print_line(&format!("weir: {name}: {error:#}"));
            }
        }
    }
    if rows.is_empty() {
        anyhow::bail!("nothing could be measured");
    }
    let text = if is_json {
        serde_json::to_string(&all)?
    } else {
        let columns = [
            "group",
            "what",
            "rule",
            "asked %",
            "achieved %",
            "error %",
            "allowed %",
            "batches/s",
            "p99 ms",
            "idle w. w.",
            "lag p99 µs",
            "",
        ];
        format!(
            "Each {} s; shares of time by the device's ledger, one figure for each pod; idle w. w.: idle although a pod with \
             quota left waited.\n{}",
            plan.seconds,
            new_table(&columns, rows, 3)
        )
    };
    print(&text)?;
    Ok(is_disturbed)
}

fn print_line(line: &str) {
    // A failed write to stderr cannot be reported.
    let _written = writeln!(std::io::stderr(), "{line}");
}

fn row(group: &str, what: &str, outcome: &Outcome) -> Vec<String> {
    let pods = 0..outcome.plan.pods.len();
    let each = |figure: &dyn Fn(usize) -> String| {
        let figures: Vec<_> = pods.clone().map(figure).collect();
        figures.join(" ")
    };
    vec![
        group.to_owned(),
        what.to_owned(),
        outcome.plan.rule.name(),
        each(&|pod| format!("{:.1}", outcome.entitled[pod] * 100.0)),
        each(&|pod| format!("{:.2}", outcome.achieved[pod].share * 100.0)),
        each(&|pod| format!("{:+.2}", error(outcome, pod) * 100.0)),
        each(&|pod| format!("{:.2}", allowed(outcome, pod) * 100.0)),
        each(&|pod| format!("{:.1}", rate(outcome, pod))),
        each(&|pod| {
            let ms = outcome.achieved[pod].p99_ms;
            ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.0}"))
        }),
        percent(outcome.idle_while_waiting),
        format!("{:.0}", outcome.device.lag_us.p99),
        if outcome.disturbed.is_some() {
            "disturbed".to_owned()
        } else {
            String::new()
        },
    ]
}

fn cases(seconds: f64) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut add = |group, what: String, rule, pods: Vec<Pod>, part| {
        cases.push(Case {
            group,
            what,
            rule,
            pods,
            part,
        });
    };
    for rule in [Rule::Weir, Rule::Paper, Rule::ReactiveBucket] {
        for quotas in ["10:90", "30:70", "20:30:50"] {
            for work in [Work::Kernels, Work::Long, Work::Graphs, Work::Pauses] {
                let mut own = pods(quotas, work)?;
                if work == Work::Pauses {
                    for pod in own.iter_mut().skip(1) {
                        pod.work = Work::Kernels;
                    }
                }
                add("quotas", format!("{quotas} {work}"), rule, own, "H100");
            }
        }
        let elastic = "request=0.1,limit=1:request=0.5,limit=1";
        add(
            "elastic",
            "0.1/1 0.5/1".to_owned(),
            rule,
            pods(elastic, Work::Kernels)?,
            "H100",
        );
        for idle in [0, 1] {
            let mut own = pods(elastic, Work::Kernels)?;
            (own[idle].idle_from, own[idle].idle_for) = (seconds * 0.3, seconds * 0.3);
            let what = format!(
                "0.1/1 0.5/1, {} idle for {:.1} s",
                own[idle].name,
                seconds * 0.3
            );
            add("elastic", what, rule, own, "H100");
        }
        let debt = "request=0.1,limit=0.1,once=5s:limit=1";
        add(
            "debt",
            "one kernel of 5 s at limit 0.1".to_owned(),
            rule,
            pods(debt, Work::Kernels)?,
            "H100",
        );
    }
    for quota in ["0.2", "0.4", "0.6", "0.8", "1"] {
        let own = format!("request={quota},limit={quota},work=resnet");
        add(
            "S14",
            format!("ResNet at {quota}"),
            Rule::Weir,
            pods(&own, Work::Kernels)?,
            "V100",
        );
    }
    for sm in [24, 100] {
        let resnet = format!("request=0.5,limit=0.8,sm={sm},work=resnet");
        let rnnt = format!("request=0.5,limit=0.5,sm={sm},work=rnnt");
        for (what, own) in [
            ("ResNet alone", resnet.clone()),
            ("RNNT alone", rnnt.clone()),
            ("ResNet and RNNT", format!("{resnet}:{rnnt}")),
        ] {
            add(
                "S17",
                format!("{what}, {sm} % of the SMs"),
                Rule::Weir,
                pods(&own, Work::Kernels)?,
                "V100",
            );
        }
    }
    let eight = [
        vec!["request=0.4,limit=0.4,sm=12,work=resnet"; 4],
        vec!["request=0.4,limit=0.4,sm=24,work=rnnt"; 2],
        vec!["request=0.6,limit=0.6,sm=50,work=bert"; 2],
    ];
    for rule in [Rule::Weir, Rule::Paper] {
        let own = pods(&eight.concat().join(":"), Work::Kernels)?;
        add(
            "pack",
            "4 ResNet, 2 RNNT, 2 BERT".to_owned(),
            rule,
            own,
            "V100",
        );
    }
    for (claim, model, printed) in [
        ("S01", "resnet", "71.37 and 296.8"),
        ("S02", "rnnt", "12.51 and 43.24"),
        ("S03", "gnmt", "28.85 and 43.79"),
    ] {
        for (count, sm) in [(1, 100), (8, 12)] {
            let own = vec![format!("limit=1,sm={sm},work={model}"); count].join(":");
            let what = format!("{count} {model} of {sm} % (printed: {printed}/s)");
            add(
                claim,
                what,
                Rule::Racing,
                pods(&own, Work::Kernels)?,
                "V100",
            );
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_has_a_valid_plan() {
        let all = cases(10.0).unwrap();
        assert_eq!(all.len(), 3 * (12 + 3 + 1) + 5 + 6 + 2 + 6);
    }
}
