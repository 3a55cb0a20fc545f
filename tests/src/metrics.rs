//! A page of metrics in Prometheus' text format.

use std::net::SocketAddr;

use crate::client::Client;

/// Series with their values, and their descriptions.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Scrapes `/metrics`.
    ///
    /// # Panics
    /// If the answer is not a page of metrics.
    pub async fn scrape(address: SocketAddr) -> Self {
        let response = Client::connect(address).await.get("/metrics").await;
        assert_eq!(response.status(), 200);
        let kind = response.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
        Self {
            text: response.text(),
        }
    }

    /// Returns the page's complete text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the sum over all series of this name with all of these labels, each as `key="value"`; `None` if there is none.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let values = self
            .series(name, labels)
            .into_iter()
            .map(|(_, value)| value);
        values.reduce(|a, b| a + b)
    }

    /// Returns all series of this name with all of these labels: labels as written, and value.
    #[must_use]
    pub fn series(&self, name: &str, labels: &[&str]) -> Vec<(&str, f64)> {
        self.text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let (found, written) = series.split_once('{').unwrap_or((series, ""));
                let fits = found == name && labels.iter().all(|label| written.contains(label));
                Some((written.trim_end_matches('}'), value.parse().ok()?)).filter(|_| fits)
            })
            .collect()
    }

    /// Returns the upper bounds of a histogram's buckets, without the infinite one.
    #[must_use]
    pub fn bounds(&self, name: &str) -> Vec<f64> {
        let mut bounds = Vec::new();
        for (labels, _) in self.series(&format!("{name}_bucket"), &[]) {
            let bound = labels
                .split("le=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            let bound = bound.and_then(|bound| bound.parse::<f64>().ok());
            if let Some(bound) = bound.filter(|bound| bound.is_finite()) {
                if bounds.contains(&bound) {
                    break;
                }
                bounds.push(bound);
            }
        }
        bounds
    }
}
