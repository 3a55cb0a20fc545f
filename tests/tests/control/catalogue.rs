//! The metrics of role `control` against the catalogue.

use std::net::SocketAddr;
use std::time::Instant;

use dashboards::catalogue::Program;
use tests::catalogue::problems;
use tests::control::Path;
use tests::metrics::Metrics;
use tests::{PATIENCE, eventually};

use super::{cluster, control};

#[tokio::test]
async fn the_page_matches_the_catalogue() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    let control = control(&cluster);
    eventually("the revision is attached", || {
        cluster.path("f") == Path::Own(vec![pod.ip])
    })
    .await;
    // The metric is exported after the step.
    let mut page = Metrics::default();
    let begin = Instant::now();
    while page.value("weir_attached", &[]) != Some(1.0) {
        assert!(begin.elapsed() < PATIENCE, "{}", page.text());
        page = Metrics::scrape(SocketAddr::new(control.ip, 9476)).await;
    }
    assert_eq!(
        problems(page.text(), Program::ActivatorControl, &[]),
        [""; 0]
    );
}
