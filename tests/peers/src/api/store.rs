//! Objects with their versions, and the history of changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Resource;

type Name = (String, String);

/// Store of all objects: see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<Resource, BTreeMap<Name, Value>>,
    version: u64,
    history: Vec<Change>,
    /// Last version whose changes were dropped from the history.
    compacted: u64,
}

/// A change, as a watch delivers it.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) resource: Resource,
    /// Event type: `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) kind: &'static str,
    /// The object after the change; before it if deleted.
    pub(super) object: Value,
    /// The object before the change; `None` if it was added.
    pub(super) before: Option<Value>,
}

/// A written object and its version.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) version: u64,
    pub(super) object: Value,
}

/// Reason for which nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreError {
    /// The object has no `metadata.name`.
    NoName,
    /// The object exists already, or its `resourceVersion` is not the last one.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// The patch is malformed or does not apply.
    Invalid,
}

fn name_of(object: &Value) -> Result<Name, StoreError> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let name = (text("namespace"), text("name"));
    if name.1.is_empty() {
        return Err(StoreError::NoName);
    }
    Ok(name)
}

impl Store {
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        let name = (namespace.to_owned(), name.to_owned());
        self.objects.get(resource)?.get(&name).cloned()
    }

    /// Returns all objects of a resource by namespace and name, in one namespace or, if it is empty, in all.
    pub(super) fn list<'a>(
        &'a self,
        resource: &Resource,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Name, &'a Value)> {
        let all = self.objects.get(resource).into_iter().flatten();
        all.filter(move |((own, _), _)| namespace.is_empty() || own == namespace)
    }

    /// Returns the changes of a resource after a version; `None` if the history begins later.
    pub(super) fn changes(
        &self,
        resource: &Resource,
        after: u64,
        up_to: u64,
    ) -> Option<Vec<Change>> {
        if after < self.compacted {
            return None;
        }
        let own = self.history.iter().filter(|change| {
            change.resource == *resource && change.version > after && change.version <= up_to
        });
        Some(own.cloned().collect())
    }

    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }

    pub(super) fn create(
        &mut self,
        resource: &Resource,
        object: Value,
    ) -> Result<Written, StoreError> {
        let name = name_of(&object)?;
        let own = self.objects.get(resource);
        if own.is_some_and(|own| own.contains_key(&name)) {
            return Err(StoreError::Conflict);
        }
        self.apply(resource, object)
    }

    /// Replaces an object, which must have the last version if it states one.
    pub(super) fn update(
        &mut self,
        resource: &Resource,
        object: Value,
    ) -> Result<Written, StoreError> {
        let (namespace, name) = name_of(&object)?;
        let known = self.get(resource, &namespace, &name);
        let known = known.ok_or(StoreError::NotFound)?;
        if is_other(
            &object["metadata"]["resourceVersion"],
            &known["metadata"]["resourceVersion"],
        ) {
            return Err(StoreError::Conflict);
        }
        let metadata = &object["metadata"];
        if !metadata["deletionTimestamp"].is_null() && !has_finalizers(&object) {
            let deleted = self.delete(resource, &namespace, &name);
            return deleted.ok_or(StoreError::NotFound);
        }
        self.apply(resource, object)
    }

    /// Deletes an object, which must meet the preconditions; one with finalizers is marked and stays.
    pub(super) fn delete_if(
        &mut self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        preconditions: &Value,
    ) -> Result<Written, StoreError> {
        let known = self.get(resource, namespace, name);
        let mut known = known.ok_or(StoreError::NotFound)?;
        for key in ["uid", "resourceVersion"] {
            if is_other(&preconditions[key], &known["metadata"][key]) {
                return Err(StoreError::Conflict);
            }
        }
        if has_finalizers(&known) {
            known["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:01Z");
            return self.apply(resource, known);
        }
        let deleted = self.delete(resource, namespace, name);
        deleted.ok_or(StoreError::NotFound)
    }

    /// Creates an object, or replaces that of its name.
    pub(super) fn apply(
        &mut self,
        resource: &Resource,
        mut object: Value,
    ) -> Result<Written, StoreError> {
        let name = name_of(&object)?;
        self.version += 1;
        let before = self.get(resource, &name.0, &name.1);
        let uid = before
            .as_ref()
            .map(|before| before["metadata"]["uid"].clone());
        let uid =
            uid.unwrap_or_else(|| json!(format!("00000000-0000-0000-0000-{:012}", self.version)));
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["uid"] = uid;
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let own = self.objects.entry(resource.clone()).or_default();
        own.insert(name, object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        Ok(self.note(resource, kind, object, before))
    }

    pub(super) fn delete(
        &mut self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Written> {
        let key = (namespace.to_owned(), name.to_owned());
        let before = self.objects.get_mut(resource)?.remove(&key)?;
        self.version += 1;
        let mut object = before.clone();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        Some(self.note(resource, "DELETED", object, Some(before)))
    }

    fn note(
        &mut self,
        resource: &Resource,
        kind: &'static str,
        object: Value,
        before: Option<Value>,
    ) -> Written {
        self.history.push(Change {
            version: self.version,
            resource: resource.clone(),
            kind,
            object: object.clone(),
            before,
        });
        Written {
            version: self.version,
            object,
        }
    }
}

/// Returns whether a value is stated and differs from the known one.
fn is_other(named: &Value, known: &Value) -> bool {
    named.is_string() && named != known
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

/// Merges a patch into an object (RFC 7386).
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(object) = object.as_object_mut() {
                object.remove(key);
            }
        } else {
            merge(&mut object[key], value);
        }
    }
}
