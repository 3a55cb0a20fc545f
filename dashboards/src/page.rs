//! Comparison of a program's exported metrics with the catalogue.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::{Metric, Program};

/// A metric family in a page of metrics.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// Sets of label names of its series, without `le`.
    labels: BTreeSet<BTreeSet<String>>,
    series: usize,
}

/// Expectations of a page beyond the catalogue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expectation<'a> {
    /// The conditions in `only` which hold: their metrics must be exported, and those of other conditions must not.
    pub only: &'a [&'a str],
    /// Whether `metrics.pods` of the agent is on.
    pub pods: bool,
}

/// Returns the differences between a page and the catalogue's entries of its program, one sentence each. Families that
/// are not Weir's, such as Knative's own, are ignored.
#[must_use]
pub fn differences(
    text: &str,
    program: Program,
    catalogue: &[Metric],
    expected: Expectation<'_>,
) -> Vec<String> {
    let mut found = families(text);
    found.retain(|name, _| name.starts_with("weir_"));
    let mut all = Vec::new();
    for metric in catalogue {
        if !metric.programs.contains(&program) {
            continue;
        }
        let name = &metric.name;
        let is_expected = metric
            .only
            .as_deref()
            .is_none_or(|only| expected.only.contains(&only));
        let family = found.remove(name);
        let Some(family) = family.filter(|family| family.series > 0) else {
            if is_expected {
                all.push(format!("{name} is listed but not exported"));
            }
            continue;
        };
        if !is_expected {
            let only = metric.only.as_deref().unwrap_or_default();
            all.push(format!(
                "{name} is exported, but is listed only for: {only}"
            ));
        }
        if family.kind != metric.kind.name() {
            let listed = metric.kind.name();
            all.push(format!("{name} is a {}, listed as {listed}", family.kind));
        }
        if family.help != metric.meaning {
            all.push(format!("the help of {name} is {:?}", family.help));
        }
        let mut with_pod = metric.labels.clone();
        with_pod.insert("pod".to_owned());
        for labels in &family.labels {
            let is_right =
                *labels == metric.labels || (metric.pod && expected.pods && *labels == with_pod);
            if !is_right {
                all.push(format!("a series of {name} has the labels {labels:?}"));
            }
        }
        if metric.pod && expected.pods && !family.labels.contains(&with_pod) {
            all.push(format!("no series of {name} has the label pod"));
        }
    }
    all.extend(
        found
            .keys()
            .map(|name| format!("{name} is exported but not listed")),
    );
    all
}

/// Returns the number of series on a page whose names begin with `weir_`.
#[must_use]
pub fn series(text: &str) -> usize {
    text.lines()
        .filter(|line| line.starts_with("weir_"))
        .count()
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut found: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            help.clone_into(&mut found.entry(name.to_owned()).or_default().help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            kind.clone_into(&mut found.entry(name.to_owned()).or_default().kind);
        } else if let Some((series, _)) = line.rsplit_once(' ') {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|base| found.get(*base).is_some_and(|own| own.kind == "histogram"));
            let family = found.entry(family.unwrap_or(name).to_owned()).or_default();
            family.series += 1;
            family.labels.insert(label_names(labels));
        }
    }
    found
}

/// Returns the names in `a="x",b="y"}`, without `le`. Values may contain any character, including `\"`.
fn label_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = text;
    while let Some((name, value)) = rest.split_once("=\"") {
        let name = name.trim_start_matches(',');
        if name != "le" {
            names.insert(name.to_owned());
        }
        let mut is_escaped = false;
        let end = value.find(|character| {
            let is_end = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            is_end
        });
        rest = end.map_or("", |end| &value[end + 1..]);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Kind;

    fn metric(name: &str, kind: Kind, labels: &[&str]) -> Metric {
        Metric {
            name: name.to_owned(),
            kind,
            unit: String::new(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            programs: vec![Program::Agent],
            pod: false,
            only: None,
            meaning: "What it is.".to_owned(),
            query: String::new(),
        }
    }

    const PAGE: &str = "# HELP weir_a_total What it is.\n# TYPE weir_a_total counter\n\
        weir_a_total{slot=\"0,\\\"x=\\\"\",gpu=\"b\"} 1\n\
        # HELP weir_h What it is.\n# TYPE weir_h histogram\n\
        weir_h_bucket{le=\"+Inf\"} 1\nweir_h_sum 1\nweir_h_count 1\n\
        # HELP kn_x Another's.\n# TYPE kn_x gauge\nkn_x 1\n";

    fn found_in(text: &str, catalogue: &[Metric]) -> Vec<String> {
        differences(text, Program::Agent, catalogue, Expectation::default())
    }

    #[test]
    fn a_page_equal_to_the_catalogue_has_no_differences() {
        let catalogue = [
            metric("weir_a_total", Kind::Counter, &["slot", "gpu"]),
            metric("weir_h", Kind::Histogram, &[]),
        ];
        assert_eq!(found_in(PAGE, &catalogue), [""; 0]);
        assert_eq!(series(PAGE), 4);
    }

    #[test]
    fn each_difference_is_named() {
        let mut conditional = metric("weir_c", Kind::Gauge, &[]);
        conditional.only = Some("sometimes".to_owned());
        let catalogue = [
            metric("weir_a_total", Kind::Gauge, &["slot"]),
            metric("weir_b", Kind::Gauge, &[]),
            conditional,
        ];
        let page = PAGE.replace("HELP weir_a_total What", "HELP weir_a_total That");
        let page = format!("{page}# HELP weir_c What it is.\n# TYPE weir_c gauge\nweir_c 1\n");
        assert_eq!(
            found_in(&page, &catalogue),
            [
                "weir_a_total is a counter, listed as gauge",
                "the help of weir_a_total is \"That it is.\"",
                "a series of weir_a_total has the labels {\"gpu\", \"slot\"}",
                "weir_b is listed but not exported",
                "weir_c is exported, but is listed only for: sometimes",
                "weir_h is exported but not listed",
            ]
        );
    }

    #[test]
    fn the_label_pod_is_required_exactly_where_it_is_expected() {
        let mut own = metric("weir_a_total", Kind::Counter, &["slot", "gpu"]);
        own.pod = true;
        let catalogue = [own, metric("weir_h", Kind::Histogram, &[])];
        let pods = Expectation {
            pods: true,
            ..Expectation::default()
        };
        let of = |page: &str, expected| differences(page, Program::Agent, &catalogue, expected);
        assert_eq!(
            of(PAGE, pods),
            ["no series of weir_a_total has the label pod"]
        );
        let page = PAGE.replace("gpu=\"b\"", "gpu=\"b\",pod=\"p\"");
        assert_eq!(of(&page, pods), [""; 0]);
        assert_eq!(of(&page, Expectation::default()).len(), 1);
    }
}
