//! Mamba 1 and 2 (Gu and Dao, arXiv 2312.00752; Dao and Gu, arXiv 2405.21060).

use puna_graph::{Graph, ValueId};

use crate::{Architecture, Builder, ModelError};

pub const MAMBA: Architecture = Architecture { name: "mamba", build: |b| build(b, Builder::mamba1) };
pub const MAMBA2: Architecture = Architecture { name: "mamba2", build: |b| build(b, Builder::mamba2) };

fn build<'m>(
    mut b: Builder<'m>,
    mixer: fn(&mut Builder<'m>, ValueId) -> Result<ValueId, ModelError>,
) -> Result<Graph, ModelError> {
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = mixer(b, h)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
