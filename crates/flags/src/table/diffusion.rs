//! Flags of text by diffusion.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, integer, number, number_in};

const DIFFUSION: ToolSet = ToolSet::DIFFUSION;

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value("--diffusion-steps", "N", "Steps", |c: &mut Config, v| {
        c.diffusion.steps = at_least(v, 1)?;
        Ok(())
    })
    .default("128")
    .tools(DIFFUSION),
    Flag::switch("--diffusion-visual", "Show the text of every step", |c: &mut Config, on| {
        c.diffusion.visual = on;
    })
    .tools(DIFFUSION),
    Flag::value(
        "--diffusion-eps",
        "N",
        "Fill places anywhere, by a time that falls from 1 to N; 0 with --diffusion-block-length",
        |c: &mut Config, v| {
            c.diffusion.end = number_in(v, 0.0, 0.999)?;
            Ok(())
        },
    )
    .default("0")
    .tools(DIFFUSION),
    Flag::value(
        "--diffusion-block-length",
        "N",
        "Fill blocks of N tokens one after the other; 0 with --diffusion-eps",
        |c: &mut Config, v| {
            c.diffusion.block_length = integer(v)?;
            Ok(())
        },
    )
    .default("0")
    .tools(DIFFUSION),
    Flag::value(
        "--diffusion-algorithm",
        "N",
        "Places to fill first: 0 any with equal chance, 1 by entropy, 2 by margin, 3 at random, 4 by confidence",
        |c: &mut Config, v| {
            c.diffusion.algorithm = integer(v)?;
            if c.diffusion.algorithm > 4 {
                return Err("expected 0 to 4".into());
            }
            Ok(())
        },
    )
    .default("4")
    .tools(DIFFUSION),
    Flag::value("--diffusion-alg-temp", "N", "Temperature of the choice of places", |c: &mut Config, v| {
        c.diffusion.order_temperature = number(v)?;
        Ok(())
    })
    .default("0")
    .tools(DIFFUSION),
    Flag::value("--diffusion-cfg-scale", "N", "Classifier-free guidance; 0 means none", |c: &mut Config, v| {
        c.diffusion.guidance = number(v)?;
        Ok(())
    })
    .default("0")
    .tools(DIFFUSION),
    Flag::value(
        "--diffusion-add-gumbel-noise",
        "N",
        "Gumbel noise on the logits if not 0 and the temperature is above 0",
        |c: &mut Config, v| {
            c.diffusion.noise = number(v)? != 0.0;
            Ok(())
        },
    )
    .default("0")
    .tools(DIFFUSION),
];
