"""The channels by which uploads are aggregated: plain, masked, encrypted."""

from __future__ import annotations

from mpifed.comm.channels.base import Channel, ChannelSetting


def make_channel(setting: ChannelSetting) -> Channel:
    """The channel that the setting names; its libraries are imported here."""
    if setting.protection.channel == "masked":
        from mpifed.comm.channels.masked import Masked

        return Masked(setting)
    if setting.protection.channel == "encrypted":
        from mpifed.comm.channels.encrypted import Encrypted

        return Encrypted(setting)
    return Channel(setting)
