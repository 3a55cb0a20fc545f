//! The experiments of the papers as workloads (workloads §4), defined in `presets.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Daily, Mix, Model, Rates, Shape, Spec, SpecError};

const TEXT: &str = include_str!("presets.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    shapes: BTreeMap<String, Shape>,
    models: BTreeMap<String, Vec<Model>>,
    presets: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    about: String,
    seed: u64,
    functions: Vec<u32>,
    warm_up_s: f64,
    counted_s: f64,
    rates: Vec<Rates>,
    shape: String,
    daily: Option<Daily>,
    models: String,
    #[serde(default)]
    mix: Mix,
    compare_with: Vec<String>,
}

/// A named workload with the sizes at which it is run.
#[derive(Clone, PartialEq, Debug)]
pub struct Preset {
    /// Description in one line.
    pub about: String,
    /// Numbers of functions at which the workload is run, rising.
    pub functions: Vec<u32>,
    /// Rates at which the workload is run.
    pub rates: Vec<Rates>,
    /// Ids of the printed results to compare with.
    pub compare_with: Vec<String>,
    /// Spec at the first number of functions and the first rates.
    first: Spec,
}

impl Preset {
    /// Returns the spec at the first number of functions and the first rates.
    #[must_use]
    pub fn spec(&self) -> Spec {
        self.first.clone()
    }

    /// Returns the spec at this number of functions and these rates; neither needs to be one of the lists.
    #[must_use]
    pub fn spec_at(&self, functions: u32, rates: Rates) -> Spec {
        Spec {
            functions,
            rates,
            ..self.first.clone()
        }
    }
}

fn book() -> Result<Book, SpecError> {
    toml::from_str(TEXT).map_err(|error| SpecError::Text(error.to_string()))
}

/// Returns the names of all presets, in alphabetical order.
///
/// # Errors
/// Never, unless the program's own file of presets is broken.
pub fn preset_names() -> Result<Vec<String>, SpecError> {
    Ok(book()?.presets.into_keys().collect())
}

/// Returns the preset with this name.
///
/// # Errors
/// Returns [`SpecError::Preset`], with the existing names, if there is no such preset.
pub fn preset(name: &str) -> Result<Preset, SpecError> {
    let mut book = book()?;
    let Some(entry) = book.presets.remove(name) else {
        let names: Vec<String> = book.presets.into_keys().collect();
        return Err(SpecError::Preset {
            name: name.chars().take(80).collect(),
            allowed: names.join(", "),
        });
    };
    let missing = |what: &str| SpecError::Text(format!("preset {name}: there is no {what}"));
    let first = Spec {
        experiment: name.to_owned(),
        seed: entry.seed,
        functions: *entry.functions.first().ok_or_else(|| missing("size"))?,
        warm_up_s: entry.warm_up_s,
        counted_s: entry.counted_s,
        rates: *entry.rates.first().ok_or_else(|| missing("rate"))?,
        total_per_minute: None,
        shape: book
            .shapes
            .remove(&entry.shape)
            .ok_or_else(|| missing(&entry.shape))?,
        daily: entry.daily,
        models: book
            .models
            .remove(&entry.models)
            .ok_or_else(|| missing(&entry.models))?,
        mix: entry.mix,
    };
    first.validate()?;
    Ok(Preset {
        about: entry.about,
        functions: entry.functions,
        rates: entry.rates,
        compare_with: entry.compare_with,
        first,
    })
}

/// Returns the shape with this name: `poisson`, `steady`, `mild`, `uneven`, `bursty`, `spiky`, `stairs`.
///
/// # Errors
/// Returns [`SpecError::Value`], with the existing names, if there is no such shape.
pub fn named_shape(name: &str) -> Result<Shape, SpecError> {
    book()?.shapes.remove(name).ok_or_else(|| SpecError::Value {
        field: "shape",
        found: name.chars().take(80).collect(),
        allowed: "poisson, steady, mild, uneven, bursty, spiky or stairs",
    })
}
