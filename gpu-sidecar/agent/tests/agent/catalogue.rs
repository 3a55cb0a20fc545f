//! The agent's metrics against the catalogue: an MPS slot, a MIG slice, exclusive slots.

use dashboards::catalogue::{Program, catalogue};
use dashboards::page::{Expectation, differences};
use dashboards::promtool;

use crate::SHARED;
use crate::node::Node;
use testing::until;

/// Maximum number of series of one revision on one slot.
const SERIES_MAX: usize = 140;
const CONDITIONS: [&str; 3] = [
    "where a pod has weir.dev/gpu-memory",
    "on slots of kind mps",
    "where price.gpu-hour is configured",
];

fn problems(page: &str, only: &[&str], pods: bool) -> Vec<String> {
    let expected = Expectation { only, pods };
    let mut all = differences(page, Program::Agent, &catalogue().unwrap(), expected);
    all.extend(
        promtool::check_page(page)
            .unwrap()
            .lines()
            .map(str::to_owned),
    );
    all
}

/// Starts a node with a whole GPU and a MIG slice, and a pod on each. Returns it with its page.
fn node(config: &str) -> (Node, String) {
    let gpus = "[[gpu]]\npart = \"H100\"\n[[gpu]]\npart = \"A100\"\nslices = [\"3g.40gb\"]";
    let node = Node::running(gpus, config);
    node.daemon(0);
    node.daemon(1);
    for number in 0..2 {
        let revision = format!("serving.knative.dev/revision=\"f-{number}\"\n");
        node.pod(&format!("pod-{number}"), &format!("{SHARED}{revision}"));
    }
    let page = until("both pods are served", || {
        let page = node.metrics();
        let pods = page
            .lines()
            .filter(|line| line.starts_with("weir_gpu_pods{"));
        (pods.count() >= 1).then_some(page)
    });
    (node, page)
}

#[test]
fn the_page_matches_the_catalogue() {
    let (_node, page) = node("[price]\ngpu-hour = 2.5\n");
    assert_eq!(problems(&page, &CONDITIONS, false), [""; 0]);
    let of_pods = page.lines().filter(|line| line.contains("revision=\""));
    let mut counts = std::collections::BTreeMap::<_, usize>::new();
    for line in of_pods {
        let label = |name: &str| {
            line.split(&format!("{name}=\""))
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
        };
        *counts
            .entry((label("revision"), label("slot"), label("gpu")))
            .or_default() += 1;
    }
    for (of, count) in counts {
        assert!(count <= SERIES_MAX, "{of:?}: {count} series");
    }
    // A slice costs three sevenths of a GPU.
    let price = |slot: &str| {
        let line = page.lines().find(|line| {
            line.starts_with("weir_gpu_slot_price_per_second{")
                && line.contains(&format!("slot=\"{slot}\""))
        });
        line.unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    assert!((price("1:0") / price("0") - 3.0 / 7.0).abs() < 1e-9);
}

#[test]
fn with_pods_only_attributed_metrics_have_the_label() {
    let (_node, page) = node("[metrics]\npods = true\n");
    assert_eq!(problems(&page, &CONDITIONS[..2], true), [""; 0]);
}
