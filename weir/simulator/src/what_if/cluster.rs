//! The cluster: nodes, GPUs, memory, links and price from a user's file.

use policy::Span;
use serde::Deserialize;
use toml::Spanned;

use super::input::{ABOVE_ZERO, InputError, NOT_NEGATIVE, POSITIVE, Text, ZERO_OR_MORE};
use crate::node::hardware::{LinkTimes, NodeParts, millis};
use crate::node::{CopyTimes, Hardware, Hops, MemoryTimes, ModelTimes};

/// Largest number of GPUs of a node, as in the policy.
pub const GPUS_MAX: u32 = 64;
/// Largest number of nodes.
pub const NODES_MAX: u32 = 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    like: Option<Spanned<String>>,
    nodes: Option<Spanned<i64>>,
    price_per_gpu_hour: Option<Spanned<f64>>,
    #[serde(default)]
    node: Node,
    #[serde(default)]
    link: Link,
    #[serde(default)]
    hops: HopTimes,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    gpus: Option<Spanned<i64>>,
    models_gb: Option<Spanned<f64>>,
    memory_gb: Option<Spanned<f64>>,
    host_gb: Option<Spanned<f64>>,
    pairs: Option<Spanned<Vec<[u32; 2]>>>,
    links: Option<Spanned<Vec<Vec<usize>>>>,
    residue_mb: Option<Spanned<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    host_gb_per_s: Option<Spanned<f64>>,
    contention: Option<Spanned<f64>>,
    swap_adds_ms: Option<Spanned<f64>>,
    classes_gb_per_s: Option<Spanned<Vec<f64>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HopTimes {
    there_ms: Option<Spanned<f64>>,
    back_ms: Option<Spanned<f64>>,
}

/// Nodes, links and price of a cluster; see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Number of nodes, at most [`NODES_MAX`].
    pub nodes: u32,
    /// Price of a GPU for an hour; `None` if costs are not computed.
    pub price_per_gpu_hour: Option<f64>,
    /// Description of every node. The wiring of its GPUs is repeated for nodes with more GPUs.
    pub node: NodeParts,
    /// Speeds of the links over which models are loaded.
    pub link: LinkTimes,
    /// Times of copies, for rules under which the number of copies matters.
    pub copies: CopyTimes,
    /// Times of the device's memory calls.
    pub memory: MemoryTimes,
    /// Latencies of a request outside of the slot.
    pub hops: Hops,
}

impl Cluster {
    /// Parses a file in TOML; `file` is its name in error messages.
    ///
    /// # Errors
    /// Returns the first error, with line and key.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, InputError> {
        let text = Text { file, text };
        let parsed: File = text.read()?;
        if let Some(like) = &parsed.like
            && like.get_ref() != "torpor"
        {
            return Err(text.wrong(like.span(), &format!("{:?}", like.get_ref()), "\"torpor\""));
        }
        let given = parsed.like.is_some();
        let of = Hardware::torpor();
        let whole = |value: &Option<Spanned<i64>>, most: u32| match value {
            None => Ok(None),
            Some(value) => u32::try_from(*value.get_ref())
                .ok()
                .filter(|number| (1..=most).contains(number))
                .map(Some)
                .ok_or_else(|| {
                    let allowed = format!("a whole number from 1 to {most}");
                    text.wrong(value.span(), &value.get_ref().to_string(), &allowed)
                }),
        };
        let positive = |value: &Option<Spanned<f64>>| {
            let value = value.as_ref();
            value
                .map(|value| text.number(value, POSITIVE, ABOVE_ZERO))
                .transpose()
        };
        let not_negative = |value: &Option<Spanned<f64>>| {
            let value = value.as_ref();
            value
                .map(|value| text.number(value, NOT_NEGATIVE, ZERO_OR_MORE))
                .transpose()
        };
        let needed = |value: Option<f64>, of_like: f64, table: &str, key: &str| {
            value
                .or_else(|| given.then_some(of_like))
                .ok_or_else(|| text.missing(table, key))
        };
        let (node, link) = (&parsed.node, &parsed.link);
        let gpus = match whole(&node.gpus, GPUS_MAX)? {
            Some(gpus) => gpus as usize,
            None if given => of.node.slots,
            None => return Err(text.missing("node", "gpus")),
        };
        let models_gb = positive(&node.models_gb)?;
        let models_gb = needed(models_gb, of.node.models_gb, "node", "models_gb")?;
        let of_like = if given { of.node.memory_gb } else { models_gb };
        let memory_gb = positive(&node.memory_gb)?.unwrap_or(of_like);
        if memory_gb < models_gb {
            let span = node.memory_gb.as_ref().or(node.models_gb.as_ref());
            let span = span.map_or(0..0, Spanned::span);
            let found = format!("{memory_gb}, below models_gb of {models_gb}");
            return Err(text.wrong(span, &found, "a GPU's total memory, at least models_gb,"));
        }
        let classes_gb_per_s = match &link.classes_gb_per_s {
            None if given => of.link.classes_gb_per_s,
            None => Vec::new(),
            Some(rates) => {
                let positive = |rate: &f64| rate.is_finite() && *rate > 0.0;
                if !rates.get_ref().iter().all(positive) {
                    let found = format!("{:?}", rates.get_ref());
                    return Err(text.wrong(rates.span(), &found, "a list of rates above 0"));
                }
                rates.get_ref().clone()
            }
        };
        let pairs = match &node.pairs {
            None if given => of.node.pairs,
            None => Vec::new(),
            Some(pairs) => {
                let fits = |&[one, other]: &[u32; 2]| one != other && one.max(other) < GPUS_MAX;
                if !pairs.get_ref().iter().all(fits) {
                    let found = format!("{:?}", pairs.get_ref());
                    return Err(text.wrong(pairs.span(), &found, "pairs of two GPUs, from 0,"));
                }
                pairs.get_ref().clone()
            }
        };
        let links = match &node.links {
            None if given => of.node.links,
            None => Vec::new(),
            Some(links) => {
                let rows = links.get_ref();
                let square = rows.iter().all(|row| row.len() == rows.len());
                let same = square
                    && (0..rows.len()).all(|at| {
                        (0..rows.len()).all(|to| {
                            rows[at][to] == rows[to][at] && rows[at][to] <= classes_gb_per_s.len()
                        })
                    });
                if !same {
                    let found = format!("{rows:?}");
                    let allowed = "a row and a column for each GPU, the same both ways, of classes of \
                                   link.classes_gb_per_s from 1, 0 for no link,";
                    return Err(text.wrong(links.span(), &found, allowed));
                }
                rows.clone()
            }
        };
        let cluster = Self {
            nodes: whole(&parsed.nodes, NODES_MAX)?.unwrap_or(1),
            price_per_gpu_hour: not_negative(&parsed.price_per_gpu_hour)?,
            link: LinkTimes {
                host_gb_per_s: needed(
                    positive(&link.host_gb_per_s)?,
                    of.link.host_gb_per_s,
                    "link",
                    "host_gb_per_s",
                )?,
                contention: not_negative(&link.contention)?.unwrap_or(of.link.contention),
                swap_adds_ms: not_negative(&link.swap_adds_ms)?.unwrap_or(of.link.swap_adds_ms),
                classes_gb_per_s,
            },
            copies: of.copies,
            memory: of.memory,
            node: NodeParts {
                slots: gpus,
                models_gb,
                memory_gb,
                host_gb: needed(positive(&node.host_gb)?, of.node.host_gb, "node", "host_gb")?,
                pairs,
                links,
                residue_mb: not_negative(&node.residue_mb)?.unwrap_or(of.node.residue_mb),
            },
            hops: Hops {
                there: millis(not_negative(&parsed.hops.there_ms)?.unwrap_or(0.0)),
                back: millis(not_negative(&parsed.hops.back_ms)?.unwrap_or(0.0)),
            },
        };
        Ok(cluster)
    }

    /// Returns the hardware of a node with this number of GPUs and these models. GPUs beyond the file's wiring are wired as
    /// further copies of it, without links between copies; fewer GPUs are the first ones of it.
    #[must_use]
    pub fn hardware(&self, gpus: u32, models: Vec<ModelTimes>) -> Hardware {
        let pattern = pattern(&self.node);
        let gpus = gpus as usize;
        let copies = gpus.div_ceil(pattern);
        let mut pairs = Vec::new();
        for copy in 0..copies {
            for pair in &self.node.pairs {
                let pair = pair.map(|gpu| gpu as usize + copy * pattern);
                if pair.iter().all(|&gpu| gpu < gpus) {
                    pairs.push(pair.map(|gpu| u32::try_from(gpu).unwrap_or(u32::MAX)));
                }
            }
        }
        let class = |one: usize, other: usize| {
            let row = self.node.links.get(one % pattern);
            let same = one / pattern == other / pattern;
            let class = row.and_then(|row| row.get(other % pattern)).copied();
            if same { class.unwrap_or(0) } else { 0 }
        };
        let links = if self.node.links.is_empty() {
            Vec::new()
        } else {
            let row = |one| (0..gpus).map(|other| class(one, other)).collect();
            (0..gpus).map(row).collect()
        };
        Hardware {
            models,
            link: self.link.clone(),
            copies: self.copies,
            memory: self.memory,
            node: NodeParts {
                slots: gpus,
                pairs,
                links,
                ..self.node.clone()
            },
        }
    }

    /// Returns the duration of a cold start by the model's footprint: Torpor's fit (workloads §9).
    pub(crate) fn cold_start_ms(footprint_mb: f64) -> f64 {
        8_850.0 + 2.35 * footprint_mb
    }

    /// Returns the duration of an uncontended request with a load from the host.
    pub(crate) fn swapped(&self, weights_mb: f64, execution: Span) -> Span {
        let transfer = millis(weights_mb / self.link.host_gb_per_s);
        let adds = millis(self.link.swap_adds_ms);
        Span(transfer.max(execution).0.saturating_add(adds.0))
    }
}

/// Returns the number of GPUs that the wiring describes.
fn pattern(node: &NodeParts) -> usize {
    let of_pairs = node
        .pairs
        .iter()
        .flatten()
        .max()
        .map_or(0, |&gpu| gpu as usize + 1);
    node.slots.max(of_pairs).max(node.links.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "price_per_gpu_hour = 2.5\n[node]\ngpus = 2\nmodels_gb = 20\nhost_gb = 100\n[link]\nhost_gb_per_s = 12\n";

    fn error(text: &str) -> String {
        Cluster::from_toml("c.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_cluster_like_torpor_equals_torpors_hardware() {
        let cluster = Cluster::from_toml("c", "like = \"torpor\"\n").unwrap();
        let of = Hardware::torpor();
        let ours = cluster.hardware(4, of.models.clone());
        assert_eq!(ours, of);
        let other = Cluster::from_toml("c", "like = \"torpor\"\n[node]\nmodels_gb = 10\n").unwrap();
        assert_eq!(other.node.models_gb.to_bits(), 10_f64.to_bits());
    }

    #[test]
    fn more_gpus_are_wired_as_copies() {
        let cluster = Cluster::from_toml("c", "like = \"torpor\"\n").unwrap();
        let models = Hardware::torpor().models;
        let wide = cluster.hardware(7, models.clone());
        assert_eq!(wide.node.pairs, [[0, 1], [2, 3], [4, 5]]);
        assert_eq!(wide.node.links[6], [0, 0, 0, 0, 1, 2, 0]);
        for gpus in 1..=64 {
            let hardware = cluster.hardware(gpus, models.clone());
            assert_eq!(hardware.topology(1.0).unwrap().slots(), gpus as usize);
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        assert!(Cluster::from_toml("c", OWN).is_ok());
        for (from, to, expected) in [
            (
                "gpus = 2",
                "gpus = 0",
                "c.toml: line 3: node.gpus is 0: a whole number from 1 to 64",
            ),
            ("gpus = 2", "gpu = 2", "line 3: unknown field `gpu`"),
            ("gpus = 2\n", "", "line 2: node.gpus is missing"),
            ("host_gb = 100\n", "", "line 2: node.host_gb is missing"),
            (
                "models_gb = 20",
                "models_gb = nan",
                "line 4: node.models_gb is NaN",
            ),
            (
                "host_gb_per_s = 12",
                "host_gb_per_s = 0",
                "line 7: link.host_gb_per_s is 0",
            ),
            (
                "host_gb = 100",
                "memory_gb = 1\nhost_gb = 100",
                "line 5: node.memory_gb is 1, below",
            ),
            (
                "host_gb = 100",
                "pairs = [[1, 1]]",
                "line 5: node.pairs is [[1, 1]]",
            ),
            (
                "host_gb = 100",
                "links = [[0, 1], [1, 0]]",
                "line 5: node.links is",
            ),
            (
                "price_per_gpu_hour = 2.5",
                "like = \"v100\"",
                "line 1: like is \"v100\": \"torpor\"",
            ),
        ] {
            assert!(OWN.contains(from), "{from}");
            let error = error(&OWN.replacen(from, to, 1));
            assert!(error.contains(expected), "{error}");
        }
    }
}
