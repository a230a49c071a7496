//! Python's generators: what `map`, `select` and their kin return there is no list.
//!
//! They can be iterated and made a `list`, but they have no length, are always true and are not JSON. Templates
//! that forget `| list` fail in transformers, and must fail here alike instead of giving another prompt.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

#[derive(Debug)]
struct Generator(Vec<Value>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = Arc::clone(self);
        // `filter` keeps the engine from knowing the length.
        let items = (0..self.0.len()).filter_map(move |position| this.0.get(position).cloned());
        Enumerator::Iter(Box::new(items))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

fn wrap(items: Vec<Value>) -> Value {
    Value::from_object(Generator(items))
}

type Arguments = Rest<ValueOrKwargs>;

/// Replaces the engine's eager filters.
pub(crate) fn register(environment: &mut Environment<'static>) {
    fn map(state: &mut State, value: Value, arguments: Arguments) -> Result<Value, Error> {
        filters::map(state, value, arguments).map(wrap)
    }
    fn select(
        state: &mut State,
        value: Value,
        test: Option<String>,
        arguments: Arguments,
    ) -> Result<Value, Error> {
        filters::select(state, value, test.map(Into::into), arguments).map(wrap)
    }
    fn reject(
        state: &mut State,
        value: Value,
        test: Option<String>,
        arguments: Arguments,
    ) -> Result<Value, Error> {
        filters::reject(state, value, test.map(Into::into), arguments).map(wrap)
    }
    fn selectattr(
        state: &mut State,
        value: Value,
        attribute: String,
        test: Option<String>,
        arguments: Arguments,
    ) -> Result<Value, Error> {
        filters::selectattr(state, value, attribute.into(), test.map(Into::into), arguments).map(wrap)
    }
    fn rejectattr(
        state: &mut State,
        value: Value,
        attribute: String,
        test: Option<String>,
        arguments: Arguments,
    ) -> Result<Value, Error> {
        filters::rejectattr(state, value, attribute.into(), test.map(Into::into), arguments).map(wrap)
    }
    environment.add_filter("map", map);
    environment.add_filter("select", select);
    environment.add_filter("reject", reject);
    environment.add_filter("selectattr", selectattr);
    environment.add_filter("rejectattr", rejectattr);
}
